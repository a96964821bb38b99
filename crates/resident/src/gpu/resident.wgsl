// The loop that serves all resident kernels of a device, in leases. What stands before it is made by `program.rs`: where
// everything lies, the handlers, `serve`, `order` and the entry point.
//
// One thread runs it. It is the only one that takes from inbound rings and that puts into outbound ones, so positions
// need no atomic steps, and a message from kernel to kernel is written where the other will find it. Loads and stores
// are atomics because the host reads and writes the same words meanwhile; `order` stands wherever words must be seen
// before the sequence word that says so, or be read after it.

// Turns of loops in this lease; a lease that made many ends, because some drivers end loops by force.
var<private> spent: u32;
// A handler needs more turns than this lease has left.
var<private> starved: bool;

// The kernel whose turn it is, as its memory says.
var<private> region: u32;
var<private> own: u32;
var<private> handler: u32;
var<private> state_at: u32;
var<private> status: u32;
var<private> request: u32;
var<private> high: u32;
var<private> normal: u32;
var<private> out: u32;
var<private> burst: u32;
var<private> high_first: u32;
var<private> normal_first: u32;
var<private> out_first: u32;
var<private> link_first: u32;
var<private> in_stride: u32;
var<private> out_stride: u32;
var<private> in_mask: u32;
var<private> out_mask: u32;
var<private> links: u32;
var<private> fed: u32;
var<private> every: u32;
var<private> clock_low: u32;
var<private> clock_high: u32;

fn word(at: u32) -> u32 {
    return atomicLoad(&arena[at]);
}

fn put(at: u32, value: u32) {
    atomicStore(&arena[at], value);
}

fn count(at: u32) {
    let more = word(at) + 1u;
    put(at, more);
    if (more == 0u) {
        put(at + 1u, word(at + 1u) + 1u);
    }
}

fn enter(number: u32) {
    let entry = DIRECTORY_ENTRIES + number * ENTRY_WORDS;
    region = word(entry + ENTRY_REGION);
    own = word(entry + ENTRY_OWN);
    handler = word(entry + ENTRY_HANDLER);
    state_at = word(entry + ENTRY_STATE);
    link_first = word(entry + ENTRY_LINK_FIRST);
    every = word(entry + ENTRY_CHECKPOINT_EVERY);
    links = word(entry + ENTRY_LINKS);
    fed = word(entry + ENTRY_FED);
    status = word(region + CONTROL_STATUS);
    request = word(region + CONTROL_ACKNOWLEDGED);
    high = word(region + CONTROL_HIGH_HEAD);
    normal = word(region + CONTROL_NORMAL_HEAD);
    out = word(region + CONTROL_OUT_TAIL);
    burst = word(region + CONTROL_BURST);
    high_first = region + word(region + CONTROL_HIGH_FIRST);
    normal_first = region + word(region + CONTROL_NORMAL_FIRST);
    out_first = region + word(region + CONTROL_OUT_FIRST);
    in_stride = word(region + CONTROL_IN_STRIDE);
    out_stride = word(region + CONTROL_OUT_STRIDE);
    in_mask = word(region + CONTROL_IN_MASK);
    out_mask = word(region + CONTROL_OUT_MASK);
    clock_low = word(region + TELEMETRY_CLOCK);
    clock_high = word(region + TELEMETRY_CLOCK + 1u);
}

// Whether the kernel has anything to look at, before it is entered: its requests and its rings.
fn stirs(number: u32) -> bool {
    let entry = DIRECTORY_ENTRIES + number * ENTRY_WORDS;
    let at = word(entry + ENTRY_REGION);
    if (word(at + CONTROL_REQUEST) != word(at + CONTROL_ACKNOWLEDGED)) {
        return true;
    }
    if (word(entry + ENTRY_FED) != 0u) {
        let mine = word(entry + ENTRY_OWN);
        if (word(mine + OWN_LINK_HEAD) != word(mine + OWN_LINK_TAIL)) {
            return true;
        }
    }
    let mask = word(at + CONTROL_IN_MASK);
    let stride = word(at + CONTROL_IN_STRIDE);
    let first = word(at + CONTROL_HIGH_HEAD);
    if (word(at + word(at + CONTROL_HIGH_FIRST) + (first & mask) * stride) == first + 1u) {
        return true;
    }
    let second = word(at + CONTROL_NORMAL_HEAD);
    if (word(at + word(at + CONTROL_NORMAL_FIRST) + (second & mask) * stride) == second + 1u) {
        return true;
    }
    return word(at + CONTROL_STATUS) == STATUS_DRAINING;
}

// Copies the state beside itself, with what the kernel had done by then.
fn checkpoint() {
    let version = word(own + OWN_SAVED_VERSION);
    put(own + OWN_SAVED_VERSION, version + 1u);
    order();
    let words = state_words(handler);
    let saved = state_at + words;
    for (var i = 0u; i < words; i++) {
        put(saved + i, word(state_at + i));
    }
    spent += words + 1u;
    put(own + OWN_SAVED_HANDLED, word(region + TELEMETRY_HANDLED));
    put(own + OWN_SAVED_HANDLED + 1u, word(region + TELEMETRY_HANDLED + 1u));
    put(own + OWN_SAVED_CLOCK, clock_low);
    put(own + OWN_SAVED_CLOCK + 1u, clock_high);
    put(own + OWN_SAVED_HIGH, high);
    put(own + OWN_SAVED_NORMAL, normal);
    put(own + OWN_SAVED_OUT, out);
    order();
    put(own + OWN_SAVED_VERSION, version + 2u);
    put(own + OWN_SINCE, 0u);
    put(region + TELEMETRY_CHECKPOINTS, word(region + TELEMETRY_CHECKPOINTS) + 1u);
}

// The host wants something.
fn obey(asked: u32) {
    order();
    request = asked;
    let wanted = word(region + CONTROL_CHECKPOINT_WANTED);
    if (wanted != word(region + CONTROL_CHECKPOINT_MADE)) {
        checkpoint();
        order();
        put(region + CONTROL_CHECKPOINT_MADE, wanted);
    }
    var next = status;
    switch (word(region + CONTROL_COMMAND)) {
        case COMMAND_ACTIVATE: { next = STATUS_ACTIVE; }
        case COMMAND_PAUSE: { next = STATUS_PAUSED; }
        case COMMAND_DRAIN: { next = STATUS_DRAINING; }
        case COMMAND_TERMINATE: { next = STATUS_TERMINATED; }
        default: {}
    }
    if (next != status && status != STATUS_TERMINATED && status != STATUS_FAILED) {
        status = next;
        order();
        put(region + CONTROL_STATUS, next);
    }
    put(region + CONTROL_ACKNOWLEDGED, asked);
}

// Whether each kernel that this one feeds has room, or can be passed over.
fn links_have_room() -> bool {
    for (var i = 0u; i < links; i++) {
        spent += 1u;
        let link = own + OWN_LINKS + i * LINK_WORDS;
        let entry = DIRECTORY_ENTRIES + word(link) * ENTRY_WORDS;
        let to = word(entry + ENTRY_OWN);
        let taken = word(to + OWN_LINK_TAIL) - word(to + OWN_LINK_HEAD);
        if (word(link + 1u) == 0u && taken > word(entry + ENTRY_LINK_MASK)) {
            if (takes_messages(entry)) {
                return false;
            }
        }
    }
    return true;
}

fn takes_messages(entry: u32) -> bool {
    let is = word(word(entry + ENTRY_REGION) + CONTROL_STATUS);
    return is != STATUS_DRAINING && is != STATUS_TERMINATED && is != STATUS_FAILED;
}

// Puts an answer into the rings of the kernels that this one feeds.
fn feed(source: u32) {
    let words = (reply_length(handler) + 3u) / 4u;
    for (var i = 0u; i < links; i++) {
        spent += 1u;
        let link = own + OWN_LINKS + i * LINK_WORDS;
        let entry = DIRECTORY_ENTRIES + word(link) * ENTRY_WORDS;
        let to = word(entry + ENTRY_OWN);
        let mask = word(entry + ENTRY_LINK_MASK);
        let tail = word(to + OWN_LINK_TAIL);
        if (!takes_messages(entry) || tail - word(to + OWN_LINK_HEAD) > mask) {
            count(link + 2u);
            count(region + TELEMETRY_DROPPED);
        } else {
            let stride = word(word(entry + ENTRY_REGION) + CONTROL_IN_STRIDE);
            let slot = word(entry + ENTRY_LINK_FIRST) + (tail & mask) * stride;
            put(slot + SLOT_TYPE, reply_type(handler));
            put(slot + SLOT_LENGTH, reply_length(handler));
            put(slot + SLOT_FLAGS, 1u);
            put(slot + SLOT_CLOCK, clock_low);
            put(slot + SLOT_CLOCK + 1u, clock_high);
            for (var j = 0u; j < words; j++) {
                put(slot + SLOT_PAYLOAD + j, word(source + j));
            }
            spent += words + 1u;
            put(to + OWN_LINK_TAIL, tail + 1u);
            count(region + TELEMETRY_SENT);
        }
    }
}

// Runs the handler and publishes what came of it. False if the lease is too far gone for it.
fn handle(slot: u32, marks: u32, answer: u32) -> bool {
    let ask = (marks & FLAG_ASK) != 0u;
    put(region + TELEMETRY_BUSY, 1u);
    var code = FAULT_NO_PAYLOAD;
    if ((marks & FLAG_ATTACHED) == 0u) {
        code = serve(slot, answer + SLOT_PAYLOAD);
    }
    if (starved) {
        return false;
    }
    // Later than the message, and than the last one.
    let sent_low = word(slot + SLOT_CLOCK);
    let sent_high = word(slot + SLOT_CLOCK + 1u);
    if (sent_high > clock_high || (sent_high == clock_high && sent_low > clock_low)) {
        clock_low = sent_low;
        clock_high = sent_high;
    }
    clock_low += 1u;
    if (clock_low == 0u) {
        clock_high += 1u;
    }
    let done = code == FAULT_NONE;
    let answers = ask || answers_all(handler);
    let on = answers && !ask && links > 0u && done;
    let version = word(region + TELEMETRY_VERSION);
    put(region + TELEMETRY_VERSION, version + 1u);
    order();
    put(region + TELEMETRY_BUSY, 0u);
    if (done) {
        count(region + TELEMETRY_HANDLED);
    } else {
        count(region + TELEMETRY_FAILED);
    }
    put(region + TELEMETRY_CLOCK, clock_low);
    put(region + TELEMETRY_CLOCK + 1u, clock_high);
    if (on) {
        feed(answer + SLOT_PAYLOAD);
    } else if (answers && done) {
        count(region + TELEMETRY_SENT);
    }
    order();
    put(region + TELEMETRY_VERSION, version + 2u);
    if (answers && !on) {
        if (done) {
            put(answer + SLOT_TYPE, reply_type(handler));
            put(answer + SLOT_LENGTH, reply_length(handler));
            put(answer + SLOT_FLAGS, 0u);
            put(answer + SLOT_BUFFER, 0u);
        } else {
            put(answer + SLOT_TYPE, 0u);
            put(answer + SLOT_LENGTH, 0u);
            put(answer + SLOT_FLAGS, FLAG_FAILED);
            put(answer + SLOT_BUFFER, code);
        }
        put(answer + SLOT_ID, out + 1u);
        put(answer + SLOT_ID + 1u, 0u);
        if (ask) {
            put(answer + SLOT_CORRELATION, word(slot + SLOT_ID));
            put(answer + SLOT_CORRELATION + 1u, word(slot + SLOT_ID + 1u));
        } else {
            put(answer + SLOT_CORRELATION, 0u);
            put(answer + SLOT_CORRELATION + 1u, 0u);
        }
        put(answer + SLOT_CLOCK, clock_low);
        put(answer + SLOT_CLOCK + 1u, clock_high);
        put(answer + SLOT_GENERATION, 0u);
        order();
        out += 1u;
        put(answer, out);
        put(region + CONTROL_OUT_TAIL, out);
    }
    return true;
}

// Obeys, or handles one message. False if there is nothing to do, or no room for what would come of it.
fn step() -> bool {
    let asked = word(region + CONTROL_REQUEST);
    if (asked != request) {
        obey(asked);
        return true;
    }
    if (status != STATUS_ACTIVE && status != STATUS_DRAINING) {
        return false;
    }
    let high_at = high_first + (high & in_mask) * in_stride;
    let normal_at = normal_first + (normal & in_mask) * in_stride;
    let urgent = word(high_at) == high + 1u;
    let usual = word(normal_at) == normal + 1u;
    var linked = false;
    var link_head = 0u;
    if (fed != 0u) {
        link_head = word(own + OWN_LINK_HEAD);
        linked = link_head != word(own + OWN_LINK_TAIL);
    }
    if (!urgent && !usual && !linked) {
        if (status == STATUS_DRAINING) {
            if (high == word(region + CONTROL_DRAIN_HIGH) && normal == word(region + CONTROL_DRAIN_NORMAL)) {
                status = STATUS_TERMINATED;
                put(region + CONTROL_STATUS, status);
            }
        }
        return false;
    }
    let answer = out_first + (out & out_mask) * out_stride;
    if (word(answer) != out) {
        return false;
    }
    if (links > 0u) {
        if (!links_have_room()) {
            return false;
        }
    }
    // Urgent ones first, but not for ever; then those of the host and those of other kernels in turn.
    let bound = word(region + CONTROL_STARVATION_BOUND);
    let others = usual || linked;
    let first = urgent && !(others && burst >= bound);
    let turn = word(own + OWN_TURN);
    let from_link = !first && linked && (!usual || turn != 0u);
    var slot = normal_at;
    if (first) {
        slot = high_at;
    } else if (from_link) {
        slot = link_first + (link_head & in_mask) * in_stride;
    }
    order();
    let marks = word(slot + SLOT_FLAGS);
    if ((marks & FLAG_VOID) == 0u) {
        if (!handle(slot, marks, answer)) {
            return false;
        }
    }
    let now = select(0u, burst + 1u, first && others);
    if (now != burst) {
        burst = now;
        put(region + CONTROL_BURST, burst);
    }
    if (first) {
        put(slot, high + in_mask + 1u);
        high += 1u;
        put(region + CONTROL_HIGH_HEAD, high);
    } else if (from_link) {
        put(own + OWN_LINK_HEAD, link_head + 1u);
        put(own + OWN_TURN, 0u);
    } else {
        put(slot, normal + in_mask + 1u);
        normal += 1u;
        put(region + CONTROL_NORMAL_HEAD, normal);
        if (fed != 0u) {
            put(own + OWN_TURN, 1u);
        }
    }
    if (every != 0u) {
        let since = word(own + OWN_SINCE) + 1u;
        put(own + OWN_SINCE, since);
        if (since >= every) {
            checkpoint();
        }
    }
    return true;
}

fn lease() {
    let stop = word(DIRECTORY_STOP);
    let kernels = word(DIRECTORY_KERNELS);
    if (stop == STOP_NOW || kernels == 0u) {
        return;
    }
    let budget = word(DIRECTORY_BUDGET);
    var number = word(DIRECTORY_NEXT) % kernels;
    var turn = 0u;
    var idle = 0u;
    spent = 0u;
    starved = false;
    put(DIRECTORY_LEASES, word(DIRECTORY_LEASES) + 1u);
    enter(number);
    loop {
        spent += 1u;
        if (step()) {
            idle = 0u;
            turn += 1u;
        } else {
            idle += 1u;
        }
        if (starved || spent > budget) {
            break;
        }
        if (idle > 0u) {
            let now = word(DIRECTORY_STOP);
            if (now == STOP_NOW || (now == STOP_IDLE && idle > kernels)) {
                break;
            }
        }
        if (kernels > 1u && (idle > 0u || turn >= word(DIRECTORY_ENTRIES + number * ENTRY_WORDS + ENTRY_TURN))) {
            turn = 0u;
            number += 1u;
            if (number == kernels) {
                number = 0u;
            }
            // Most have nothing to do.
            for (var skipped = 1u; skipped < kernels && spent <= budget; skipped++) {
                if (stirs(number)) {
                    break;
                }
                spent += 1u;
                idle += 1u;
                number += 1u;
                if (number == kernels) {
                    number = 0u;
                }
            }
            enter(number);
        }
    }
    put(DIRECTORY_NEXT, number);
}
