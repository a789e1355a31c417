-- What is held beside counters, in Redis. A sorted set behind each counter's key, with ~h, has the ids by when they
-- end; a hash, with ~a, what each of them holds, and in the field t the sum. -1 stands for an id that was settled.
-- Expects the time `now`. What has ended is let go of when it is read, some at a time.

local ENDED_AT_ONCE = 128
local TOTAL = "t"

local function text_of(number)
  return string.format("%.0f", number)
end

local function listed(reply)
  return reply.err and {} or reply
end

local function expire(set, hash)
  local ended = listed(redis.pcall("ZRANGEBYSCORE", set, "-inf", text_of(now), "LIMIT", 0, ENDED_AT_ONCE))
  if #ended == 0 then
    return
  end
  local sum = 0
  for _, hits in ipairs(redis.call("HMGET", hash, unpack(ended))) do
    sum = sum + math.max(0, tonumber(hits) or 0)
  end
  redis.call("ZREM", set, unpack(ended))
  redis.call("HDEL", hash, unpack(ended))
  if sum > 0 then
    redis.call("HINCRBY", hash, TOTAL, text_of(-sum))
  end
end

local holds, known, expired = {}, {}, {}

-- What an id holds beside a counter; with "" all that is held.
function holds.read(key, id)
  local name = id .. "\0" .. key
  local hits = known[name]
  if not hits then
    if not expired[key] then
      expire(key .. "~h", key .. "~a")
      expired[key] = true
    end
    hits = redis.pcall("HGET", key .. "~a", id == "" and TOTAL or id)
    hits = type(hits) == "string" and tonumber(hits) or 0
    known[name] = hits
  end
  return hits
end

local function write(change)
  local set, hash = change.key .. "~h", change.key .. "~a"
  known[change.id .. "\0" .. change.key] = change.state
  if change.id == "" then
    redis.pcall("HSET", hash, TOTAL, text_of(change.state))
  elseif change.state == 0 then
    redis.pcall("ZREM", set, change.id)
    redis.pcall("HDEL", hash, change.id)
  else
    redis.pcall("HSET", hash, change.id, text_of(change.state))
    if change.life then
      redis.pcall("ZADD", set, text_of(now + change.life), change.id)
    end
  end
end

-- Writes what is held, and takes that out of the changes. Both keys are gone a second after the last hold.
function holds.write(changes)
  local touched = {}
  for name, change in pairs(changes) do
    if change.id then
      write(change)
      touched[change.key] = true
      changes[name] = nil
    end
  end
  for key in pairs(touched) do
    local last = listed(redis.pcall("ZREVRANGE", key .. "~h", 0, 0, "WITHSCORES"))[2]
    local life = last and math.ceil((tonumber(last) - now) / 1000) + 1000 or 0
    for _, behind in ipairs({ "~h", "~a" }) do
      redis.pcall("PEXPIRE", key .. behind, text_of(math.max(0, life)))
    end
  end
end

return holds
