-- Shared by every script: the layout of records and outcomes, the queue clock.
-- The loader puts numbers and places where names stand: of fixed keys (K_in, K_live, K_ready_0, ...), of their count (NK)
-- and of a record's fields (R_ST), since what a script defines is made anew for each command.

-- Record: a packed array, no nil in it. Its order is that of shared/request.py Record.
-- FIELDS: V ST EI LN TN TK T0 DL QT W TOK ST0 GR CR AT APIS FL DG PA DEP WH EV TP CT TAG HELD NB WT
-- A release that adds fields at the end keeps the version. It goes up where a field's meaning changes.
local RECORD_V, EXACT = 1, 2 ^ 53
local STATES = {W = true, L = true, Q = true, R = true, K = true}
local EVENTS_MAX, OUT_MAX, RECENT_MAX = 16, 20000, 10000
-- Without a tick for so long an api counts as gone.
local ABSENT_MS = 30000

local format, find, concat = string.format, string.find, table.concat

-- A number as a command's argument. The server's own way of writing one, which is quicker, is good enough for a score:
-- elsewhere it may be read as text, and 1.8e+12 is no integer.
local function int(x) return format('%.0f', x) end
local function real(x) return format('%.17g', x) end

-- A command may hold several runs of its script. What each of them would write to one place is written once, after all.
local at_end = {}

-- Writes that a damaged key may fail without taking all else along: the first of them that did is told at the end.
local failed

local function write(command, key, args)
  local n = #args
  -- In parts, since only so much can be unpacked at once; an even number, since they may be pairs.
  for i = 1, n, 2000 do
    local reply = redis.pcall(command, key, unpack(args, i, n - i < 2000 and n or i + 1999))
    if type(reply) == 'table' then failed = failed or reply end
  end
end

-- One more of what is written at the end: most commands have one, so that a list is made with it.
local function add(list, a, b)
  if not list then return {a, b} end
  local n = #list
  list[n + 1], list[n + 2] = a, b
  return list
end

-- The server's own clock, which events tell: people read them. Everything that is compared goes by the queue clock.
local wall

-- The queue clock: never backwards, and a jump of the server's clock (or a pause) is not passed on.
-- Only tick moves it; until then scripts see at most one second after the last tick's step.
local clock

local function queue_now()
  -- Time stands still in a script, also in one that runs several times over.
  if clock then return unpack(clock) end
  local raw = tonumber(ARGV[1])
  if raw == 0 then
    local t = redis.call('TIME')
    raw = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  end
  wall = raw
  local f = redis.call('HMGET', K_flags, 'clk', 'off', 'paused')
  local clk, off = tonumber(f[1]) or 0, tonumber(f[2]) or 0
  local now = raw - off
  if clk > 0 and now - clk > 5000 then now = clk + 1000 end
  if clk > now then now = clk end
  clock = {now, raw, clk, off, f[3] == '1'}
  return unpack(clock)
end

-- Raises, or tells BAD, for what is no record: what has another type cannot be compared, concatenated or indexed so.
-- NEWER: of a later version, which those that know it will see to. Fields beyond ours are kept as they are.
local function read_record(raw)
  local r, more = cmsgpack.unpack(raw)
  if r[R_V] > RECORD_V then return nil, 'NEWER' end
  local events = r[R_EV]
  local is_sound = more == nil and r[R_V] == RECORD_V and STATES[r[R_ST]]
    and find(r[R_EI], '^%d+%-%d+$') and #r[R_EI] < 22 and (r[R_LN] == 0 or r[R_LN] == 1 or r[R_LN] == 2)
    and r[R_TK] < EXACT and r[R_TK] % 1 == 0 and r[R_T0] < EXACT and r[R_DL] < EXACT and r[R_QT] < EXACT and r[R_ST0] < EXACT
    and r[R_GR] < EXACT and r[R_CR] < EXACT and r[R_AT] < EXACT and r[R_CT] < EXACT
    and r[R_TN] >= '' and r[R_W] >= '' and r[R_TOK] >= '' and r[R_FL] >= '' and r[R_DG] >= '' and r[R_PA] >= ''
    and r[R_WH] >= '' and r[R_TP] >= '' and concat(r[R_APIS]) and concat(r[R_DEP]) and events[1]
  if not is_sound then return nil, 'BAD' end
  for i = 1, #events do
    local event = events[i]
    if not (event[1] < EXACT and event[2] >= '' and event[3] >= '') then return nil, 'BAD' end
  end
  -- Fields that came later: a record of before has them as if they had been left out.
  r[R_TAG], r[R_HELD], r[R_NB], r[R_WT] = r[R_TAG] or 0, r[R_HELD] or 0, r[R_NB] or 0, r[R_WT] or 1
  if r[R_TAG] < EXACT and r[R_HELD] < EXACT and r[R_NB] < EXACT and r[R_WT] > 0 then return r end
  return nil, 'BAD'
end

-- The record, or nil and why there is none to go by: nothing where the id is not live, else BAD or NEWER. Who comes
-- upon a BAD one leaves it to the sweep (`when`), which has it ended; it is never an error of the script.
local function parse_record(raw)
  local is_read, rec, why = pcall(read_record, raw)
  if is_read then return rec, why end
  return nil, 'BAD'
end

-- Records as this command has left them so far: packed, or false where one has ended.
local records = {}

local function load_record(rid)
  local raw = records[rid]
  if raw == nil then raw = redis.call('HGET', K_live, rid) end
  if raw then return parse_record(raw) end
end

-- Nil where somebody has removed the entry.
local function payload_of(rec)
  local entry = redis.call('XRANGE', K_in, rec[R_EI], rec[R_EI])[1]
  return entry and entry[2][4] or nil
end

local function save_record(rid, rec)
  records[rid] = cmsgpack.pack(rec)
end

at_end[#at_end + 1] = function()
  local set, gone
  for rid, raw in pairs(records) do
    if raw then set = add(set, rid, raw) else gone = add(gone, rid) end
  end
  if set then write('HSET', K_live, set) end
  if gone then write('HDEL', K_live, gone) end
end

local function add_event(rec, kind, detail)
  local ev = rec[R_EV]
  if #ev >= EVENTS_MAX then table.remove(ev, 2) end
  ev[#ev + 1] = {wall, kind, detail or ''}
end

-- The place of a suspect among its like: fewer crashes first, then by submit time, so that batchmates of a poison prompt
-- are cleared before it runs alone.
local function suspect_rank(rec) return int(rec[R_CR] * 1e13 + rec[R_T0]) end

local function is_queued(rec) return rec[R_ST] == 'Q' or rec[R_ST] == 'L' or rec[R_ST] == 'W' end

-- When the sweep must look at a queued request. While its caller may leave without a word that is now and then.
local function due_at(rec, now)
  local due = math.min(rec[R_DL], rec[R_QT])
  return rec[R_HELD] == 1 and math.min(due, now + ABSENT_MS) or due
end

-- A packed list of ids; none where there is none, or somebody has damaged it.
local function list_of(packed)
  local is_read, list = pcall(cmsgpack.unpack, packed)
  if not is_read or type(list) ~= 'table' then return {} end
  for _, id in ipairs(list) do
    if type(id) ~= 'string' then return {} end
  end
  return list
end

local function split(text)
  local parts = {}
  for part in string.gmatch(text, '[^,]+') do parts[#parts + 1] = part end
  return parts
end
