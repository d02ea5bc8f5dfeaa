# /// script
# dependencies = ["sidekiq"]
#
# [tool.bench]
# debian = "ruby-sidekiq"
# note = """
# 10 threads, and a look for scheduled jobs each 5 s on average: both are its defaults; it loses the jobs that a killed \
# process held."""
# ///
# Sidekiq: threads, ready jobs by BRPOP, and a thread that looks for scheduled jobs.

require 'sidekiq'

Sidekiq.logger.level = Logger::WARN
Sidekiq.configure_server { |config| config.redis = { url: ENV['BENCH_REDIS'] } }
Sidekiq.configure_client { |config| config.redis = { url: ENV['BENCH_REDIS'] } }

class Job
  include Sidekiq::Job

  CELLS = File.open(ENV['BENCH_ORACLE'], 'r+b')

  # The oracle of bench/oracle.py; Ruby has no shared memory, so it writes eight bytes into the same file.
  def perform(number, _padding = '')
    CELLS.pwrite([Process.clock_gettime(Process::CLOCK_REALTIME)].pack('E'), 8 * number)
  end
end

module Bench
  COMMANDS = [['sidekiq', '--environment', 'production', '--require', './bench/schedulers/sidekiq.rb']].freeze

  module_function

  def enqueue(number)
    Job.perform_async(number)
  end

  def enqueue_many(jobs)
    Sidekiq::Client.push_bulk('class' => Job, 'args' => jobs)
  end

  def schedule(due, number)
    Job.perform_at(due, number)
  end

  def schedule_many(due, jobs)
    Sidekiq::Client.push_bulk('class' => Job, 'args' => jobs, 'at' => due)
  end
end
