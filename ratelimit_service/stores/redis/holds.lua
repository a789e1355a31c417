-- What is held beside counters, in Redis. A sorted set behind each counter's key, with ~h, has the ids by when they
-- end; a hash, with ~a, what each of them holds, in the field t the sum, and in e when both keys may go. -1 stands for
-- an id that was settled. Expects the time `now`. What has ended is let go of when it is read, some at a time.

local ENDED_AT_ONCE = 128
local TOTAL, ENDS = "t", "e"
local all_of = table.unpack or unpack -- Lua 5.1, and those after it

local function text_of(number)
  return string.format("%.0f", number)
end

local function listed(reply)
  return reply.err and {} or reply
end

local function number_of(text)
  return type(text) == "string" and tonumber(text) or 0
end

local function expire(set, hash)
  local ended = listed(redis.pcall("ZRANGEBYSCORE", set, "-inf", text_of(now), "LIMIT", 0, ENDED_AT_ONCE))
  if #ended == 0 then
    return
  end
  local sum = 0
  for _, hits in ipairs(redis.call("HMGET", hash, all_of(ended))) do
    sum = sum + math.max(0, number_of(hits))
  end
  redis.call("ZREM", set, all_of(ended))
  redis.call("HDEL", hash, all_of(ended))
  if sum > 0 then
    redis.call("HINCRBY", hash, TOTAL, text_of(-sum))
  end
end

local holds, known = {}, {}

-- What an id holds beside a counter; with "" all that is held.
function holds.read(key, id)
  local held = known[key]
  if not held then
    expire(key .. "~h", key .. "~a")
    local found = listed(redis.pcall("HMGET", key .. "~a", TOTAL, ENDS, id))
    held = { ends = number_of(found[2]), hits = { [id] = number_of(found[3]) } }
    held.hits[""] = number_of(found[1])
    known[key] = held
  elseif not held.hits[id] then
    held.hits[id] = number_of(redis.pcall("HGET", key .. "~a", id))
  end
  return held.hits[id]
end

-- Writes one change: its hash field is added to `fields`. Returns when the hold ends, if it has got another end.
local function write(change, fields)
  known[change.key].hits[change.id] = change.state
  if change.id == "" then
    fields[#fields + 1], fields[#fields + 2] = TOTAL, text_of(change.state)
  elseif change.state == 0 then
    redis.pcall("ZREM", change.key .. "~h", change.id)
    redis.pcall("HDEL", change.key .. "~a", change.id)
  else
    fields[#fields + 1], fields[#fields + 2] = change.id, text_of(change.state)
    if change.life then
      redis.pcall("ZADD", change.key .. "~h", text_of(now + change.life), change.id)
      return now + change.life
    end
  end
  return 0
end

-- Writes what is held, and takes that out of the changes. Both keys are gone some time after the last hold.
function holds.write(changes)
  local of = {}
  for name, change in pairs(changes) do
    if change.id then
      local fields = of[change.key] or { ends = 0 }
      of[change.key] = fields
      fields.ends = math.max(fields.ends, write(change, fields))
      changes[name] = nil
    end
  end
  for key, fields in pairs(of) do
    local held, longer = known[key], fields.ends > known[key].ends
    if longer then
      held.ends = 2 * fields.ends - now -- later holds that last as long need not write this again
      fields[#fields + 1], fields[#fields + 2] = ENDS, text_of(held.ends)
    end
    redis.pcall("HSET", key .. "~a", all_of(fields))
    local kept = text_of(math.max(0, math.ceil((held.ends - now) / 1000)) + 1000)
    redis.pcall("PEXPIRE", key .. "~h", kept) -- a set that was empty is a new key
    if longer then
      redis.pcall("PEXPIRE", key .. "~a", kept)
    end
  end
end

return holds
