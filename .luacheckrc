std = "lua51"
max_line_length = 120

-- What Redis gives to a script.
read_globals = { "redis", "cjson", "cmsgpack", "bit", "struct", "KEYS", "ARGV" }

-- The prelude stands before every verb, so its locals are known there: read them from it.
local prelude = io.open("lua/_prelude.lua")
if prelude then
  for line in prelude:lines() do
    local list = line:match("^local function ([%w_]+)") or line:match("^local ([%w_, ]+)")
    for name in (list or ""):gmatch("[%w_]+") do
      read_globals[#read_globals + 1] = name
    end
  end
  prelude:close()
end

-- The prelude itself does not use all that it defines.
files["lua/_prelude.lua"].ignore = { "211" }
