-- end_missing: end the children of a list that were never submitted (at most 64 a run), so that the list can end.
-- KEYS: ten recent stat flags resv | grp:<parent> res:<parent> res:<child>... out:<api>...
-- ARGV: now parent state code start count ttl_ms apis; only due when the reservation ran out, or state is C (cancel)
-- Replies: {OK, submitted, n} {GONE} {NOTDUE} {KEYS, submitted}
-- Moves: nothing to E (submit_incomplete) or C for each missing child. `submitted` moves on, so twice is as once.
-- FLAGS: allow-oom
-- USES: prelude numbers room terminal
local now = queue_now()
local parent, state, code, start, lacking = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local grp = KEYS[NK + 1]
local g = redis.call('HMGET', grp, 'n', 'submitted', 'tokens', 'tenant', 'digest', 't0', 'at')
if not g[1] then return {'GONE'} end
local n, done = tonumber(g[1]), tonumber(g[2])
if state == 'C' then
  redis.call('HSET', grp, 'cancelled', 1)
else
  local till = redis.call('ZSCORE', K_resv, parent)
  if till and tonumber(till) > now then return {'NOTDUE'} end
end
if done ~= start or start + lacking > n then return {'KEYS', done} end
local outs = {}
for i, api in ipairs(split(ARGV[8])) do outs[api] = KEYS[NK + 2 + lacking + i] end
local missed = {}
for i = 1, lacking do
  local outcome = cmsgpack.pack({1, state, code, 'it was never submitted', '', '', 0, 0, tonumber(g[6]), 0, now, g[5], g[4],
    parent, '', '', {{tonumber(g[7]), 'submitted', ''}, {wall, 'ended', state}}, 0})
  redis.call('SET', KEYS[NK + 2 + i], outcome, 'PX', ARGV[7])
  count(state == 'C' and 'cancelled' or 'error')
  redis.call('HSET', grp, 'submitted', start + i)
  missed = count_child(parent, grp, KEYS[NK + 2], now, ARGV[7], outs)
end
local unused = 0
if start + lacking == n then
  unused = tonumber(g[3])
  redis.call('HSET', grp, 'tokens', 0)
end
give_room(g[4], lacking, unused)
-- A cancelled list stays where the sweep looks until its last child has ended: its canceller may have died half-way.
if state == 'C' and redis.call('EXISTS', KEYS[NK + 2]) == 0 then
  redis.call('ZADD', K_resv, now + 5000, parent)
elseif start + lacking == n then
  redis.call('ZREM', K_resv, parent)
end
local reply = {'OK', start + lacking, n}
for _, api in ipairs(missed) do reply[#reply + 1] = api end
return reply
