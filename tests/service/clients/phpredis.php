<?php
[, $port, $queue] = $argv;
$redis = new Redis();
$redis->connect('127.0.0.1', (int) $port);
$redis->auth(['producer', 'change-me']);
$root = "evsched:{{$queue}}:";
$later = microtime(true) + 3600;

echo $redis->zAdd("{$root}schedule", 0, '{"task":"add","args":[1,2],"id":"inline","reply":true}'), "\n";
$both = $redis->multi()
    ->hSet("{$root}job:record", 'payload', '{"task":"add","args":[3,4],"reply":true}')
    ->hSet("{$root}job:record", 'priority', '7')
    ->zAdd("{$root}schedule", $later, 'record')
    ->exec();
echo $both[0] + $both[1], ' ', $both[2], "\n";
$redis->zAdd("{$root}schedule", ['XX'], 0, 'record');
$redis->hSet("{$root}job:gone", 'payload', '{"task":"add","args":[5,6]}');
$redis->zAdd("{$root}schedule", $later, 'gone');
echo $redis->zRem("{$root}schedule", 'gone'), "\n";
echo $redis->blPop("{$root}reply:inline", 25)[1], "\n";
echo $redis->blPop("{$root}reply:record", 25)[1], "\n";
echo $redis->hGetAll("{$root}job:record")['outcome'], "\n";
echo $redis->del("{$root}reply:record"), "\n";
