# frozen_string_literal: true

require 'redis'

port, queue = ARGV
redis = Redis.new(host: '127.0.0.1', port: port.to_i, username: 'producer', password: 'change-me')
root = "evsched:{#{queue}}:"
later = Time.now.to_f + 3600

puts redis.zadd("#{root}schedule", 0, '{"task":"add","args":[1,2],"id":"inline","reply":true}') ? 1 : 0
both = redis.multi do |transaction|
  transaction.hset("#{root}job:record", 'payload', '{"task":"add","args":[3,4],"reply":true}', 'priority', 7)
  transaction.zadd("#{root}schedule", later, 'record')
end
puts "#{both[0]} #{both[1] ? 1 : 0}"
redis.zadd("#{root}schedule", 0, 'record', xx: true)
redis.hset("#{root}job:gone", 'payload', '{"task":"add","args":[5,6]}')
redis.zadd("#{root}schedule", later, 'gone')
puts redis.zrem("#{root}schedule", 'gone') ? 1 : 0
puts redis.blpop("#{root}reply:inline", timeout: 25)[1]
puts redis.blpop("#{root}reply:record", timeout: 25)[1]
puts redis.hgetall("#{root}job:record")['outcome']
puts redis.del("#{root}reply:record")
