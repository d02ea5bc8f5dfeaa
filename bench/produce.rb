# Enqueue jobs with one scheduler of Ruby: `ruby bench/produce.rb NAME`. It answers the requests of bench/produce.py.
#
# The scheduler's file has a module Bench with COMMANDS, and with functions whose names and arguments are those of a
# scheduler of Python: enqueue_many(jobs), enqueue(number), schedule(due, number), schedule_many(due, jobs).

require 'json'

require_relative "schedulers/#{ARGV[0]}"

AT_ONCE = 1000 # as in bench/produce.py

def timed
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  yield
  Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
end

def numbers(first, count, *padding)
  (first...first + count).map { |number| [number, *padding] }
end

def many(first, count)
  jobs = numbers(first, count)
  timed { jobs.each_slice(AT_ONCE) { |some| Bench.enqueue_many(some) } }
end

def answer(verb, *words)
  case verb
  when 'commands' then Bench::COMMANDS
  when 'fill', 'many' then many(*words)
  when 'single'
    jobs = numbers(*words)
    timed { jobs.each { |job| Bench.enqueue(*job) } }
  when 'schedule'
    due, first, count, *padding = words
    numbers(first, count, *padding).each_slice(AT_ONCE) { |some| Bench.schedule_many(due, some) }
    true
  when 'spread'
    dues, first = words
    dues.each_with_index { |due, n| Bench.schedule(due, first + n) }
    true
  end
end

$stdout.sync = true
while (line = $stdin.gets)
  puts JSON.generate(answer(*JSON.parse(line)))
end
