-- attach: one more api that reads a request (at most 4): its notice, its chunks, and its part so far, after its end too.
-- KEYS: live when | grp:<rid> part:<rid>
-- ARGV: now rid api at n; n pieces at most, from the one that holds the place `at` = <grants>-<offset + 1> on;
--       api "": nobody, but from now on it goes on without its caller
-- Replies: {OK, piece...} {GONE, piece...} (not live); a piece = {id, {t, token, d, data}}
-- Moves: none. Twice is as once.
-- FLAGS: allow-oom
-- USES: prelude
local rid, api, at, n = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

-- The oldest reader but the owner makes room: it still finds the result by its reconcile.
local function join(apis)
  for _, known in ipairs(apis) do
    if known == api then return false end
  end
  if #apis >= 4 then table.remove(apis, 2) end
  apis[#apis + 1] = api
  return true
end

local function let_go(rec)
  rec[R_HELD] = 0
  save_record(rid, rec)
  if is_queued(rec) then redis.call('ZADD', K_when, due_at(rec), rid) end
end

-- Whether it is live, as one request or as a list, and so has readers.
local function attach()
  local rec = load_record(rid)
  if rec then
    if api ~= '' and join(rec[R_APIS]) then
      save_record(rid, rec)
    elseif api == '' and rec[R_HELD] == 1 then
      let_go(rec)
    end
    return 'OK'
  end
  local known = redis.call('HGET', KEYS[NK + 1], 'apis')
  if not known then return 'GONE' end
  local apis = split(known)
  if api ~= '' and join(apis) then redis.call('HSET', KEYS[NK + 1], 'apis', table.concat(apis, ',')) end
  return 'OK'
end

local reply = {attach()}
if n > 0 then
  local part = KEYS[NK + 2]
  local from = redis.call('XREVRANGE', part, at, '-', 'COUNT', 1)[1]
  for _, piece in ipairs(redis.call('XRANGE', part, from and from[1] or '-', '+', 'COUNT', n)) do
    reply[#reply + 1] = piece
  end
end
return reply
