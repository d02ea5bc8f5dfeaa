<?php
require 'Predis/Autoloader.php';
Predis\Autoloader::register();

[, $port, $queue] = $argv;
// Predis 1 sends AUTH with the password alone: the user goes into a command of our own.
$redis = new Predis\Client(['host' => '127.0.0.1', 'port' => (int) $port, 'read_write_timeout' => 30]);
$redis->executeRaw(['AUTH', 'producer', 'change-me']);
$root = "evsched:{{$queue}}:";
$later = microtime(true) + 3600;

echo $redis->zadd("{$root}schedule", ['{"task":"add","args":[1,2],"id":"inline","reply":true}' => 0]), "\n";
$both = $redis->transaction(function ($transaction) use ($root, $later) {
    $transaction->hset("{$root}job:record", 'payload', '{"task":"add","args":[3,4],"reply":true}');
    $transaction->hset("{$root}job:record", 'priority', 7);
    $transaction->zadd("{$root}schedule", ['record' => $later]);
});
echo $both[0] + $both[1], ' ', $both[2], "\n";
$redis->zadd("{$root}schedule", 'XX', 0, 'record');
$redis->hset("{$root}job:gone", 'payload', '{"task":"add","args":[5,6]}');
$redis->zadd("{$root}schedule", ['gone' => $later]);
echo $redis->zrem("{$root}schedule", 'gone'), "\n";
echo $redis->blpop("{$root}reply:inline", 25)[1], "\n";
echo $redis->blpop("{$root}reply:record", 25)[1], "\n";
echo $redis->hgetall("{$root}job:record")['outcome'], "\n";
echo $redis->del("{$root}reply:record"), "\n";
