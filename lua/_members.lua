-- Members of the schedule: the job that a member stands for. A member that begins with `{` is an inline job, which
-- becomes a record here. A member that cannot be a job is kept under an id of its own, for the reader of the dead set.

-- Bytes of a member, at most: four times the default cap of a payload. The content of a longer one is not kept.
local MEMBER_MOST = 1048576

local ID_RULE = 'not 1 to 200 of A-Z a-z 0-9 . _ : @ -: schedule it again under such an id'
local TOO_LONG = 'the payload has %d bytes, more than %d'
local NOT_A_HASH = 'not a hash: DEL it and schedule the job again'

-- An id for a member that contains no valid one: the SHA-1 of the member, or, if it is very long, that of its length,
-- beginning and end.
-- USES MEMBER_MOST
local function digest(member)
  if #member <= MEMBER_MOST then
    return redis.sha1hex(member)
  end
  return redis.sha1hex(#member .. member:sub(1, 4096) .. member:sub(-4096))
end

-- Is this member of the schedule an inline job, or meant to be one?
local function is_inline(member)
  return member:byte() == 123 -- {
end

-- The id under which a member is kept that is not valid as an id.
-- USES digest
local function misnamed_id(member)
  return 'bad-' .. digest(member)
end

-- Keep the member, or its beginning when it is long, in the record under which it is kept.
-- USES record
local function note_member(id, member)
  redis.call('HSET', record(id), 'member', #member <= 1024 and member or member:sub(1, 1024))
end

-- Keep a member that is not valid as an id, with its record if it has one and is not very long: the name of its record
-- would be copied several times. Returns the id under which it is kept.
-- USES misnamed_id, record, MEMBER_MOST, note_member
local function keep_misnamed(member)
  local id = misnamed_id(member)
  if #member <= MEMBER_MOST and redis.call('TYPE', record(member)).ok == 'hash' then
    redis.call('RENAME', record(member), record(id))
  end
  note_member(id, member)
  return id
end

-- Keep an inline job that cannot run, or its beginning when it is very long. Returns the id under which it is kept.
-- USES digest, MEMBER_MOST, record
local function keep_inline(member)
  local id = digest(member)
  if #member <= MEMBER_MOST then
    redis.call('HSET', record(id), 'payload', member)
  else
    redis.call('HSET', record(id), 'member', member:sub(1, 1024))
  end
  return id
end

-- Decode an inline job. Returns it as a table, or nil and why it cannot run.
-- USES TOO_LONG, is_id, ID_RULE
local function decode(member, cap)
  if #member > cap then
    return nil, TOO_LONG:format(#member, cap) .. ': store the data elsewhere and pass a reference'
  end
  local good, job = pcall(cjson.decode, member)
  if not good then
    return nil, 'the inline job is not valid JSON (' .. tostring(job) .. '): correct it and schedule it again'
  end
  for _, field in ipairs({ 'id', 'priority', 'group' }) do
    if job[field] == cjson.null then
      job[field] = nil
    end
  end
  for _, field in ipairs({ 'id', 'group' }) do
    if job[field] ~= nil and type(job[field]) ~= 'string' then
      return nil, 'the ' .. field .. ' of the inline job is not a string: put it in quotes'
    end
  end
  if job.id and not is_id(job.id) then
    return nil, 'the id of the inline job is ' .. ID_RULE
  end
  return job
end

-- Make a record of an inline job. Returns its id; or the id under which it is kept, and why it cannot run.
-- USES decode, keep_inline, digest, record, NOT_A_HASH
local function adopt(member, cap)
  local job, problem = decode(member, cap)
  if not job then
    return keep_inline(member), problem
  end
  local id, fields = job.id or digest(member), { 'payload', member }
  if job.priority ~= nil then
    fields[#fields + 1] = 'priority'
    fields[#fields + 1] = tostring(job.priority)
  end
  if job.group then
    fields[#fields + 1] = 'group'
    fields[#fields + 1] = job.group
  end
  if type(redis.pcall('HSET', record(id), unpack(fields))) == 'table' then
    return keep_inline(member), 'the key of the record of ' .. id .. ' is ' .. NOT_A_HASH
  end
  return id
end

-- The id of the job that a member of the schedule stands for. When it cannot run: the id under which it is kept, and
-- why.
-- USES is_inline, adopt, is_id, keep_misnamed, ID_RULE
local function identify(member, cap)
  if is_inline(member) then
    return adopt(member, cap)
  elseif not is_id(member) then
    return keep_misnamed(member), 'the id is ' .. ID_RULE
  end
  return member
end
