-- sliding_log: the same arithmetic as sliding_log.py; see there. A state is a string, or false
-- for a new counter. No redis.call here.

local all_of = table.unpack or unpack -- Lua 5.1, and those after it
local MAX_BYTES = 65536
local HEAD = 25
local GROUP = 128
local MAX_EXACT = 9007199254740992 -- 2^53
local MAX_TOTAL = 2251799813685248 -- 2^51

local function coded(number)
  local groups = {}
  while number >= GROUP do
    table.insert(groups, 1, number % GROUP + GROUP)
    number = math.floor(number / GROUP)
  end
  return string.char(number, all_of(groups))
end

local function number_at(entries, at)
  local number, after = string.byte(entries, at), at + 1
  local byte = string.byte(entries, after)
  while byte and byte >= GROUP do
    number, after = number * GROUP + byte - GROUP, after + 1
    byte = string.byte(entries, after)
  end
  return number, after
end

-- The number that ends before `after`, and where it starts.
local function number_before(entries, after)
  local at = after - 1
  while string.byte(entries, at) >= GROUP do
    at = at - 1
  end
  return number_at(string.sub(entries, at, after - 1), 1), at
end

local function entry(since, hits)
  local counted = hits > 1 and coded(hits * 2 + 1) or ""
  return counted .. coded(since * 2)
end

local function entry_at(entries, at)
  local number, after = number_at(entries, at)
  if number % 2 == 1 then
    local since
    since, after = number_at(entries, after)
    return since / 2, (number - 1) / 2, after
  end
  return number / 2, 1, after
end

local function read(state, now, window)
  local log = { base = now, last = now, total = 0, entries = "" }
  if not (type(state) == "string" and #state > HEAD and string.sub(state, 1, 1) == "l") then
    return log
  end
  local base, last, total = struct.unpack(">ddd", state, 2)
  if not (base >= 0 and base <= last and last < MAX_EXACT and total >= 0 and total < MAX_EXACT) then
    return log
  end
  if last - now >= window then
    log.damaged = true
    return log
  end
  local gone, at = math.max(now, last) - window, HEAD + 1
  while at <= #state do
    local since, hits, after = entry_at(state, at)
    if base + since > gone then
      return { base = base, last = last, total = total, entries = string.sub(state, at) }
    end
    base, total, at = base + since, total - hits, after
  end
  return log
end

local function state_of(log)
  return struct.pack(">c1ddd", "l", log.base, log.last, log.total) .. log.entries
end

-- The log before its newest entry, and the hits of that.
local function without_newest(log)
  local since, at = number_before(log.entries, #log.entries + 1)
  local hits = 1
  if at > 1 then
    local number, before = number_before(log.entries, at)
    if number % 2 == 1 then
      hits, at = (number - 1) / 2, before
    end
  end
  local entries = string.sub(log.entries, 1, at - 1)
  return { base = log.base, last = log.last - since / 2, total = log.total - hits, entries = entries }, hits
end

-- The log without so many hits of a moment, and how many it had.
local function without(log, moment, addend)
  local entries, stop, time, last, rest = log.entries, #log.entries + 1, log.last, log.last, addend
  while stop > 1 and time >= moment and rest > 0 do
    local since, at = number_before(entries, stop)
    local hits = 1
    since = since / 2
    if at > 1 then
      local number, before = number_before(entries, at)
      if number % 2 == 1 then
        hits, at = (number - 1) / 2, before
      end
    end
    if time == moment then
      local given = math.min(rest, hits)
      rest = rest - given
      local head = string.sub(entries, 1, at - 1)
      if hits > given then
        entries = head .. entry(since, hits - given) .. string.sub(entries, stop)
      elseif stop <= #entries then
        local since_next, hits_next, after = entry_at(entries, stop)
        entries = head .. entry(since + since_next, hits_next) .. string.sub(entries, after)
      else
        entries, last = head, time - since
      end
    end
    time, stop = time - since, at
  end
  return { base = log.base, last = last, total = log.total - addend + rest, entries = entries }, addend - rest
end

local with_hits
function with_hits(log, now, addend)
  if #log.entries >= MAX_BYTES then
    local older, hits = without_newest(log)
    return with_hits(older, now, hits + addend)
  end
  local base, last = now, now
  if log.entries ~= "" then
    base, last = log.base, log.last
  end
  local entries = log.entries .. entry(now - last, addend)
  return { base = base, last = now, total = log.total + addend, entries = entries }
end

local function reset(log, now, window)
  return log.entries ~= "" and log.last + window - now or 0
end

local function retry(log, now, addend, spec)
  if addend > spec.limit then
    return spec.window
  end
  local excess, time, at = log.total + addend - spec.limit, log.base, 1
  while excess > 0 do
    local since, hits, after = entry_at(log.entries, at)
    excess, time, at = excess - hits, time + since, after
  end
  return time + spec.window - now
end

local sliding_log = {}

function sliding_log.charge(state, now, addend, spec, force)
  local limit, window = spec.limit, spec.window
  local log = read(state, now, window)
  local damaged, before, counted = log.damaged, log.total, 0
  local passed = before + addend <= limit
  local wait = passed and 0 or retry(log, now, addend, spec)
  if addend > 0 and (passed or force) then
    counted = addend
    local noted = math.min(addend, MAX_TOTAL - log.total)
    if noted > 0 then
      log = with_hits(log, log.entries ~= "" and math.max(now, log.last) or now, noted)
    end
    state = state_of(log)
  end
  return {
    passed = passed,
    state = state,
    remaining = passed and limit - before - addend or math.max(0, limit - before),
    reset = reset(log, now, window),
    retry = wait,
    counted = counted,
    damaged = damaged,
  }
end

function sliding_log.refund(state, now, addend, spec, _, receipt)
  local log = read(state, now, spec.window)
  local damaged, given_back = log.damaged, math.min(addend, log.total)
  if receipt then
    log, given_back = without(log, receipt.until_us - spec.window, addend)
    state = given_back > 0 and state_of(log) or state
  elseif given_back > 0 then
    local rest = given_back
    while rest > 0 do
      local newest, hits = log.last
      log, hits = without_newest(log)
      if hits > rest then
        log = with_hits(log, newest, hits - rest)
      end
      rest = rest - math.min(rest, hits)
    end
    state = state_of(log)
  end
  return {
    passed = true,
    state = state,
    remaining = math.max(0, spec.limit - log.total),
    reset = reset(log, now, spec.window),
    retry = 0,
    counted = given_back,
    damaged = damaged,
  }
end

return sliding_log
