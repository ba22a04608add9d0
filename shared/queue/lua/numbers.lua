-- What every run of a command changes in the same places: counts, virtual times, the bell. Kept here while it runs, and
-- written once at its end. Needs the fixed keys stat to count, bell to ring, tags for virtual times.

local counted = {}

local function count(what, by) counted[what] = (counted[what] or 0) + (by or 1) end

local is_ringing = false

local function ring() is_ringing = true end

-- Virtual times by the lane's or the tenant's field, and those of them that have changed.
local times, moved = {}, {}

-- Whatever somebody has made of the key: turns can be had again, and nothing waits for them half-way through a move.
local function time_of(field)
  if not times[field] then times[field] = tonumber(redis.pcall('HGET', K_tags, field)) or 0 end
  return times[field]
end

local function move_time(field, time) times[field], moved[field] = time, time end

at_end[#at_end + 1] = function()
  for what, by in pairs(counted) do write('HINCRBY', K_stat, {what, int(by)}) end
  local set
  for field, time in pairs(moved) do set = add(set, field, real(time)) end
  if set then write('HSET', K_tags, set) end
  if is_ringing then write('ZADD', K_bell, {(queue_now()), 'w'}) end
end
