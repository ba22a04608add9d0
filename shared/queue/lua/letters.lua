-- Dead letters: what was given up for good, with its payload. Needs the fixed keys in (to keep one), dlq, stat.

local OLDEST_A_CALL = 256

local function size_of(letter)
  local size = 0
  for i = 2, #letter[2], 2 do size = size + #letter[2][i] end
  return size
end

local function take_letter(letter)
  redis.call('XDEL', K_dlq, letter[1])
  redis.call('HINCRBY', K_stat, 'dlq_bytes', int(0 - size_of(letter)))
end

-- The oldest go until `lacking` bytes are free; none where that would be more than go in one call. Whether they are.
local function make_room(lacking)
  local ids, size, after = {}, 0, '-'
  while size < lacking do
    if #ids == OLDEST_A_CALL then return false end
    local letter = redis.call('XRANGE', K_dlq, after, '+', 'COUNT', 1)[1]
    if not letter then break end
    ids[#ids + 1], size, after = letter[1], size + size_of(letter), '(' .. letter[1]
  end
  if #ids > 0 then redis.call('XDEL', K_dlq, unpack(ids)) end
  redis.call('HINCRBY', K_stat, 'dlq_bytes', int(0 - size))
  return true
end

-- The oldest make room for it. One that finds none, or not by so many, is not kept: never more than `max_bytes` are.
local function keep_letter(rid, payload, outcome, max_bytes)
  local size = #rid + #payload + #outcome
  if size > max_bytes then return end
  local bytes = tonumber(redis.call('HGET', K_stat, 'dlq_bytes')) or 0
  if bytes + size > max_bytes and not make_room(bytes + size - max_bytes) then return end
  -- An empty stream holds none, whoever emptied it.
  if redis.call('XLEN', K_dlq) == 0 then redis.call('HSET', K_stat, 'dlq_bytes', 0) end
  redis.call('XADD', K_dlq, '*', 'i', rid, 'p', payload, 'o', outcome)
  redis.call('HINCRBY', K_stat, 'dlq_bytes', size)
end
