use strict;
use warnings;
use Redis;

my ($port, $queue) = @ARGV;
my $redis = Redis->new(server => "127.0.0.1:$port", username => 'producer', password => 'change-me');
my $root  = "evsched:{$queue}:";
my $later = time + 3600;

print $redis->zadd("${root}schedule", 0, '{"task":"add","args":[1,2],"id":"inline","reply":true}'), "\n";
$redis->multi;
$redis->hset("${root}job:record", 'payload', '{"task":"add","args":[3,4],"reply":true}', 'priority', 7);
$redis->zadd("${root}schedule", $later, 'record');
print join(' ', $redis->exec), "\n";
$redis->zadd("${root}schedule", 'XX', 0, 'record');
$redis->hset("${root}job:gone", 'payload', '{"task":"add","args":[5,6]}');
$redis->zadd("${root}schedule", $later, 'gone');
print $redis->zrem("${root}schedule", 'gone'), "\n";
print +($redis->blpop("${root}reply:inline", 25))[1], "\n";
print +($redis->blpop("${root}reply:record", 25))[1], "\n";
my %record = $redis->hgetall("${root}job:record");
print $record{outcome}, "\n";
print $redis->del("${root}reply:record"), "\n";
