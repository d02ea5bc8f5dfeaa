std = "lua51"
max_line_length = 120

-- What Redis gives to a script.
read_globals = { "redis", "cjson", "cmsgpack", "KEYS", "ARGV" }

-- What the linker writes out (LUA_CONSTANTS of evsched/jobs/record.py).
local constants = {
  "DESCRIPTION_FIELDS", "OWN_FIELDS", "END_FIELDS", "WORK_FIELDS", "JOB_FIELDS", "RUN_FIELDS", "ATTEMPT_FIELDS",
  "TIME_FIELDS", "COUNT_FIELDS", "GROUP_FIELDS", "RETENTION",
}

-- A script sees the shared names that its header declares (`-- USES`), besides the names of the keys; a shared file
-- (`_*.lua`) sees those of all shared files. See evsched/transport/call.py.
local function names_in(text, found)
  for name in text:gmatch("[%w_]+") do
    found[#found + 1] = name
  end
end

local paths, text_of, shared = {}, {}, { unpack(constants) }
for path in io.popen("ls lua/*.lua"):lines() do
  local file = assert(io.open(path))
  paths[#paths + 1], text_of[path] = path, "\n" .. file:read("*a")
  file:close()
  if path:find("lua/_", 1, true) then
    for names in text_of[path]:gmatch("\nlocal (%f[%w_][%w_, ]+)") do
      names_in(names:gsub("^function ", ""), shared)
    end
  end
end

-- The light jobs that a call has read; what dispatch and the hand-over make of them is noted too.
local noted = { "light", "light_jobs", "recorded", "more_light" }
for at = #shared, 1, -1 do
  for _, name in ipairs(noted) do
    if shared[at] == name then
      table.remove(shared, at)
    end
  end
end

for _, path in ipairs(paths) do
  if path:find("lua/_", 1, true) then
    -- 211, 231, 241: it does not use all that it defines itself. 431: its own names are shared ones.
    files[path] = { read_globals = shared, globals = noted, ignore = { "211", "231", "241", "431" } }
  else
    local seen = { "root", "schedule", "backlog", "ready", "dead", "leases", "recurrences", unpack(constants) }
    local uses = text_of[path]:match("\n%-%- USES +(.-)\n%-%-\n") or text_of[path]:match("\n%-%- USES +(.-)\n\n")
    names_in(uses or "", seen)
    files[path] = { read_globals = seen, globals = noted }
  end
end
