local redis = require 'redis'

local port, queue = ...
-- redis-lua's own auth takes a password alone.
redis.commands.login = redis.command('AUTH')
local client = redis.connect('127.0.0.1', tonumber(port))
client:login('producer', 'change-me')
local root = 'evsched:{' .. queue .. '}:'
local later = os.time() + 3600

print(client:zadd(root .. 'schedule', 0, '{"task":"add","args":[1,2],"id":"inline","reply":true}'))
local both = client:transaction(function(transaction)
    transaction:hset(root .. 'job:record', 'payload', '{"task":"add","args":[3,4],"reply":true}')
    transaction:hset(root .. 'job:record', 'priority', 7)
    transaction:zadd(root .. 'schedule', later, 'record')
end)
print((both[1] and 1 or 0) + (both[2] and 1 or 0) .. ' ' .. both[3])
client:zadd(root .. 'schedule', 'XX', 0, 'record')
client:hset(root .. 'job:gone', 'payload', '{"task":"add","args":[5,6]}')
client:zadd(root .. 'schedule', later, 'gone')
print(client:zrem(root .. 'schedule', 'gone'))
print((client:blpop(root .. 'reply:inline', 25))[2])
print((client:blpop(root .. 'reply:record', 25))[2])
print(client:hgetall(root .. 'job:record').outcome)
print(client:del(root .. 'reply:record'))
