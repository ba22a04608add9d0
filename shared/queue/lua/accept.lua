-- Making a live request, shared by submit and submit_many.

local LANES = {[0] = K_ready_0, [1] = K_ready_1, [2] = K_ready_2}

local function ring(now) redis.call('ZADD', K_bell, int(now), 'w') end

-- How many are certain to be claimed before it, near enough: the lanes' boosts only shift who is next.
local function position(rid, lane)
  local ahead = redis.call('ZCARD', K_ready_R) + redis.call('ZCARD', K_ready_S)
  for l = 0, lane - 1 do ahead = ahead + redis.call('ZCARD', LANES[l]) end
  return ahead + (redis.call('ZRANK', LANES[lane], rid) or 0)
end

-- Start-time fair queueing inside a lane: the tag is where the tenant's virtual time stands.
local function next_tag(lane, tenant, tokens)
  local t = redis.call('HMGET', K_tags, 'v' .. lane, 'f' .. lane .. ':' .. tenant)
  local tag = math.max(tonumber(t[1]) or 0, tonumber(t[2]) or 0)
  redis.call('HSET', K_tags, 'f' .. lane .. ':' .. tenant, real(tag + tokens))
  return tag
end

local function new_record(now, m, parent, payload, rid)
  local lane, tenant, tokens = m[1], m[2], m[3]
  local eid = redis.call('XADD', K_in, '*', 'i', rid, 'p', payload)
  local tag = next_tag(lane, tenant, tokens)
  local not_before = m[12]
  local rec = {1, not_before > 0 and 'L' or 'Q', eid, lane, tenant, tokens, now, now + m[4], now + m[5], '', '', 0, 0, 0, 0,
    m[6] ~= '' and {m[6]} or {}, m[7], m[8], parent, m[9], m[10], {{wall, 'submitted', ''}}, m[11], 0, tag}
  save_record(rid, rec)
  redis.call('ZADD', K_when, int(math.min(rec[R_DL], rec[R_QT])), rid)
  if not_before > 0 then
    redis.call('ZADD', K_later, int(now + not_before), rid)
  else
    redis.call('ZADD', LANES[lane], real(tag), rid)
  end
  return rec
end
