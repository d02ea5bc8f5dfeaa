std = "lua51"
max_line_length = 120

-- What Redis gives to a script.
read_globals = { "redis", "cjson", "cmsgpack", "bit", "struct", "KEYS", "ARGV" }

-- These stand before every verb, so their locals are known there: read them from the files.
local before = { "lua/_prelude.lua", "lua/_limits.lua", "lua/_gate.lua", "lua/_recurring.lua", "lua/_audit.lua" }
for _, name in ipairs(before) do
  local file = io.open(name)
  if file then
    for line in file:lines() do
      local list = line:match("^local function ([%w_]+)") or line:match("^local ([%w_, ]+)")
      for found in (list or ""):gmatch("[%w_]+") do
        read_globals[#read_globals + 1] = found
      end
    end
    file:close()
  end
  -- They do not use all that they define themselves.
  files[name].ignore = { "211", "431" }
end
