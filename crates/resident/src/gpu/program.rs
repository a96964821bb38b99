//! The program that serves all kernels of a device: the loop of `resident.wgsl`, behind the handlers, wrapped.

use std::fmt::Write as _;

use millrace_core::Shape;

use super::arena;
use crate::{
    Message,
    clock::FARTHEST,
    engine::Types,
    layout::{self, MessageLayout},
};

/// Arrays of at most so many words are read and written word by word, larger ones in loops.
const UNROLLED: usize = 32;
/// How often a kernel is looked at before another has its turn.
const KERNEL_POLLS: usize = 8;
/// Turns that a lease may have made when a handler begins that cannot be run again, because it stores in its memory. All that
/// are left are its own.
const HEAD_START: u32 = 2048;

/// A handler as WGSL. Two are the same if all of it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) body: &'static str,
    /// Message, reply and state, each told by its type.
    types: [u32; 3],
}

/// A handler and its types.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) source: Source,
    types: Types,
}

impl Part {
    pub(crate) fn new(body: &'static str, types: Types) -> Self {
        let ids = [types.message.id, types.reply.id, types.state.id];
        Self { source: Source { body, types: ids }, types }
    }

    fn signature(&self, name: &str) -> String {
        let Types { message, reply, state } = self.types;
        // A handler that answers with nothing returns nothing.
        let returns = if reply.size == 0 { String::new() } else { format!(" -> {}", reply.name) };
        format!("fn {name}(state: ptr<function, {}>, message: {}){returns} {{", state.name, message.name)
    }

    fn layouts(&self) -> [&'static MessageLayout; 3] {
        [self.types.message, self.types.reply, self.types.state]
    }

    /// The handler alone, so that what a compiler says of it has the lines that its author wrote.
    pub(crate) fn alone(&self) -> String {
        let memory = "fn load(at: u32) -> u32 { return at; }\nfn store(at: u32, value: u32) {}\n";
        let definitions = layout::definitions(&self.layouts());
        format!("{}{}\n}}\n{definitions}{memory}", self.signature("handle"), self.source.body)
    }

    /// The handler as number `n` of a program: its structs have names of their own, its loops are counted.
    /// Also says how many loops there are in it.
    fn wrapped(&self, n: usize) -> (String, usize) {
        let layouts = self.layouts();
        let mut names = Vec::new();
        for layout in layouts {
            collect_names(layout, &mut names);
        }
        let (body, loops) = counted(self.source.body);
        let text =
            format!("{}\n{}{body}\n}}\n", layout::definitions(&layouts), self.signature(&format!("handle_{n}")),);
        let mut text = renamed(&text, &names, n);
        let Types { message, reply, state } = self.types;
        let name = |layout: &MessageLayout| format!("{}_{n}", layout.name);
        let (mut read_state, mut read_message, mut write_state, mut write_reply) =
            (Copies::reading(), Copies::reading(), Copies::writing(), Copies::writing());
        read_state.message("state", "state_at", 0, state);
        read_message.message("message", "slot + SLOT_PAYLOAD", 0, message);
        write_state.message("state", "state_at", 0, state);
        write_reply.message("reply", "to", 0, reply);
        let call = if reply.size == 0 {
            format!("handle_{n}(&state, message);")
        } else {
            format!("let reply = handle_{n}(&state, message);")
        };
        let turns = read_state.turns + read_message.turns + write_state.turns + write_reply.turns;
        // What it stored stays if it comes to no end: then it is not run again, and begins only where there is room for all of
        // it. Others may be run again in a lease that has more turns.
        let stores = pieces(&body).contains(&"store") && loops + turns > 0;
        let late = "    if (TURNS != 0u && spent > HEAD_START && !fresh) {
        starved = true;
        return FAULT_TOO_LONG;
    }\n";
        let (begins, again) = if stores { (late, "") } else { ("", "        starved = !fresh;\n") };
        let _ = write!(
            text,
            "fn serve_{n}(slot: u32, to: u32) -> u32 {{
    if (word(slot + SLOT_TYPE) != {}u) {{ return FAULT_WRONG_TYPE; }}
    if (word(slot + SLOT_LENGTH) != {}u) {{ return FAULT_WRONG_LENGTH; }}
{begins}    var state: {};
    var message: {};
{}{}    spent += {turns}u;
    {call}
    if (TURNS != 0u && spent >= TURNS) {{
{again}        return FAULT_TOO_LONG;
    }}
{}{}    return FAULT_NONE;
}}
",
            message.id,
            message.size,
            name(state),
            name(message),
            read_state.text,
            read_message.text,
            write_state.text,
            write_reply.text,
        );
        let copies = [read_state, read_message, write_state, write_reply].map(|copies| copies.loops);
        (text, loops + copies.into_iter().sum::<usize>())
    }
}

/// The whole program.
pub(crate) fn program(parts: &[Part], shape: Shape) -> String {
    let mut text = layout::wgsl();
    text += &arena::wgsl();
    // Some below what the driver can do: it counts loops that end at once, too.
    let turns = shape.turns.map_or(0, |turns| turns.saturating_sub(256));
    let _ = writeln!(text, "const TURNS: u32 = {turns}u;");
    let _ = writeln!(text, "const FARTHEST: u32 = {}u;", FARTHEST >> 32);
    let _ = writeln!(text, "const HEAD_START: u32 = {HEAD_START}u;");
    // Of a known size, so that checking an index takes no look at the buffer.
    let _ =
        writeln!(text, "@group(0) @binding(0) var<storage, read_write> arena: array<atomic<u32>, {}>;", super::ARENA);
    let _ = writeln!(text, "fn order() {{ {} }}", if shape.barriers { "storageBarrier();" } else { "" });
    let mut loops = 0;
    for (n, part) in parts.iter().enumerate() {
        let (wrapped, inside) = part.wrapped(n);
        text += &wrapped;
        loops += inside;
    }
    // What a turn of the middle and of the outer loop costs beside what is counted: one turn of each loop inside.
    let _ = writeln!(text, "const MIDDLE_TURNS: u32 = {}u;", loops + 2);
    let _ = writeln!(text, "const OUTER_TURNS: u32 = {}u;", loops + 14);
    // A handler without loops is over before anybody could see that it runs.
    let _ = writeln!(text, "const LOOPS: bool = {};", loops > 0);
    let _ = writeln!(text, "const KERNEL_POLLS: u32 = {KERNEL_POLLS}u;");
    let mut choose = |head: &str, default: &str, answer: &dyn Fn(usize, &Part) -> String| {
        let _ = writeln!(text, "{head} {{\n    switch (handler) {{");
        for (n, part) in parts.iter().enumerate() {
            let _ = writeln!(text, "        case {n}u: {{ return {}; }}", answer(n, part));
        }
        let _ = writeln!(text, "        default: {{ return {default}; }}\n    }}\n}}");
    };
    choose("fn serve(slot: u32, to: u32) -> u32", "FAULT_INVALID", &|n, _| format!("serve_{n}(slot, to)"));
    choose("fn reply_type(handler: u32) -> u32", "0u", &|_, part| format!("{}u", part.types.reply.id));
    choose("fn reply_length(handler: u32) -> u32", "0u", &|_, part| format!("{}u", part.types.reply.size));
    choose("fn state_words(handler: u32) -> u32", "0u", &|_, part| format!("{}u", part.types.state.size / 4));
    choose("fn answers_all(handler: u32) -> bool", "false", &|_, part| {
        format!("{}", part.types.reply.id != <() as Message>::TYPE)
    });
    text += include_str!("resident.wgsl");
    let _ = writeln!(
        text,
        "@compute @workgroup_size({})
fn main(@builtin(local_invocation_index) lane: u32) {{
    if (lane == 0u) {{
        lease();
    }}
}}",
        shape.threads
    );
    text
}

fn collect_names(layout: &'static MessageLayout, names: &mut Vec<&'static str>) {
    if !names.contains(&layout.name) {
        names.push(layout.name);
    }
    layout.fields.iter().filter_map(|field| field.nested).for_each(|nested| collect_names(nested, names));
}

/// Lines of WGSL that copy a message between words and a variable.
struct Copies {
    text: String,
    reads: bool,
    /// Loops in it, and the turns that they make in all.
    loops: usize,
    turns: usize,
}

impl Copies {
    fn reading() -> Self {
        Self { text: String::new(), reads: true, loops: 0, turns: 0 }
    }

    fn writing() -> Self {
        Self { text: String::new(), reads: false, loops: 0, turns: 0 }
    }

    /// The message that begins `words` words after `at`.
    fn message(&mut self, variable: &str, at: &str, words: usize, layout: &MessageLayout) {
        for field in layout.fields {
            let variable = format!("{variable}.{}", field.name);
            self.value(&variable, at, words + field.offset / 4, field.wgsl, field.nested, field.size / 4, 1, 0);
        }
    }

    /// A value of a WGSL type. `times` says how often its code runs, `depth` in how many loops it is.
    #[allow(clippy::too_many_arguments, reason = "all of it describes one place")]
    fn value(
        &mut self,
        variable: &str,
        at: &str,
        words: usize,
        ty: &str,
        nested: Option<&'static MessageLayout>,
        size: usize,
        times: usize,
        depth: usize,
    ) {
        if let Some((of, length)) = element(ty) {
            let each = size / length;
            if size <= UNROLLED {
                for i in 0..length {
                    let variable = format!("{variable}[{i}]");
                    self.value(&variable, at, words + i * each, of, nested, each, times, depth);
                }
                return;
            }
            let i = format!("i{depth}");
            let _ = writeln!(self.text, "    for (var {i} = 0u; {i} < {length}u; {i}++) {{");
            let (variable, at) = (format!("{variable}[{i}]"), format!("{at} + {i} * {each}u"));
            self.value(&variable, &at, words, of, nested, each, times * length, depth + 1);
            self.text += "    }\n";
            self.loops += 1;
            self.turns += times * (length + 1);
            return;
        }
        if let Some(nested) = nested {
            for field in nested.fields {
                let variable = format!("{variable}.{}", field.name);
                let (size, inner) = (field.size / 4, field.nested);
                self.value(&variable, at, words + field.offset / 4, field.wgsl, inner, size, times, depth);
            }
            return;
        }
        let _ = if self.reads {
            writeln!(self.text, "    {variable} = bitcast<{ty}>(word({at} + {words}u));")
        } else {
            writeln!(self.text, "    put({at} + {words}u, bitcast<u32>({variable}));")
        };
    }
}

/// Of an array type: what of, and how many.
fn element(ty: &str) -> Option<(&str, usize)> {
    let inner = ty.strip_prefix("array<")?.strip_suffix('>')?;
    let (of, length) = inner.rsplit_once(", ")?;
    Some((of, length.parse().ok()?))
}

/// The pieces of a text: names, and what is between them. Comments are replaced by spaces.
fn pieces(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 128;
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        if name(bytes[at]) {
            while at < bytes.len() && name(bytes[at]) {
                at += 1;
            }
        } else {
            at += 1;
        }
        pieces.push(&text[start..at]);
    }
    pieces
}

/// The text without comments; lines stay where they are.
fn uncommented(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    let mut depth = 0;
    while let Some(next) = rest.chars().next() {
        let (length, keep) = if rest.starts_with("/*") {
            depth += 1;
            (2, None)
        } else if depth > 0 && rest.starts_with("*/") {
            depth -= 1;
            (2, None)
        } else if depth == 0 && rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), None)
        } else {
            (next.len_utf8(), (depth == 0 || next == '\n').then_some(next))
        };
        plain.push(keep.unwrap_or(' '));
        rest = &rest[length..];
    }
    plain
}

/// The body with all its loops counted, and how many there are. A turn counts for what it can cost at most: itself, the
/// end of its loop, and one turn of each loop inside it, which a driver that runs threads as vectors makes even if a
/// condition excludes it.
fn counted(body: &str) -> (String, usize) {
    let plain = uncommented(body);
    let pieces = pieces(&plain);
    // First where each loop's block begins and how many loops are inside.
    let mut loops: Vec<(usize, usize)> = Vec::new();
    let mut blocks: Vec<Option<usize>> = Vec::new();
    let (mut in_head, mut depth) = (false, 0);
    for (i, piece) in pieces.iter().enumerate() {
        match *piece {
            "for" | "while" | "loop" => (in_head, depth) = (true, 0),
            "(" => depth += 1,
            ")" => depth -= 1,
            "{" if in_head && depth == 0 => {
                blocks.iter().flatten().for_each(|&outer: &usize| loops[outer].1 += 1);
                blocks.push(Some(loops.len()));
                loops.push((i, 0));
                in_head = false;
            }
            "{" => blocks.push(None),
            "}" => drop(blocks.pop()),
            _ => {}
        }
    }
    let mut text = String::with_capacity(plain.len() + 64);
    let mut next = loops.iter().peekable();
    for (i, piece) in pieces.iter().enumerate() {
        text += piece;
        if let Some((_, inside)) = next.next_if(|(at, _)| *at == i) {
            let _ = write!(text, " spent += {}u;", inside + 2);
        }
    }
    (text, loops.len())
}

/// The text with names that end in the number. Members of structs keep theirs.
fn renamed(text: &str, names: &[&str], n: usize) -> String {
    let mut renamed = String::with_capacity(text.len());
    let pieces = pieces(text);
    for (i, piece) in pieces.iter().enumerate() {
        renamed += piece;
        let member = i > 0 && pieces[i - 1] == "." || pieces.get(i + 1) == Some(&":");
        if !member && names.contains(piece) {
            let _ = write!(renamed, "_{n}");
        }
    }
    renamed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::Message;

    #[derive(Clone, Copy, Message)]
    #[repr(C)]
    struct Point {
        x: f32,
        y: f32,
    }

    #[derive(Clone, Copy, Message)]
    #[repr(C)]
    struct Many {
        wide: u64,
        points: [[Point; 20]; 3],
        numbers: [i32; 4],
    }

    fn part(body: &'static str) -> Part {
        Part::new(body, Types { message: Many::LAYOUT, reply: Point::LAYOUT, state: Many::LAYOUT })
    }

    fn check(text: &str) {
        let module =
            naga::front::wgsl::parse_str(text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(text)));
        let (flags, capabilities) = (naga::valid::ValidationFlags::all(), naga::valid::Capabilities::empty());
        let validated = naga::valid::Validator::new(flags, capabilities).validate(&module);
        validated.map(drop).unwrap_or_else(|error| panic!("{}", error.emit_to_string(text)));
    }

    #[test]
    fn a_program_is_valid_whatever_its_handlers_and_the_device() {
        let parts = [
            part("return message.points[0][1];"),
            part("for (var i = 0; i < 4; i++) { (*state).numbers[i] += 1; } return Point(1.0, 2.0);"),
            Part::new("", Types { message: <()>::LAYOUT, reply: <()>::LAYOUT, state: <()>::LAYOUT }),
        ];
        for part in &parts {
            check(&part.alone());
        }
        for shape in [Shape::new(8, false, Some(65_000)), Shape::new(1, true, None)] {
            check(&program(&parts, shape));
            check(&program(&parts[..1], shape));
        }
    }

    #[test]
    fn loops_are_counted_for_the_most_they_can_cost() {
        let (text, loops) = counted(
            "for (var i = f(1, (2)); i < 2; i++) { // for {
                if (a) { while (b) { loop { break; } } }
                /* while { /* loop { */ */ for (;;) { }
            } { let looped = 1; }",
        );
        assert_eq!(loops, 4);
        let plain: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            plain,
            "for (var i = f(1, (2)); i < 2; i++) { spent += 5u; if (a) { while (b) { spent += 3u; loop { spent += 2u; \
             break; } } } for (;;) { spent += 2u; } } { let looped = 1; }"
        );
        assert_eq!(text.lines().count(), 4, "lines stay where they are");
    }

    #[test]
    fn structs_get_names_of_their_own_and_members_keep_theirs() {
        let text = renamed("struct Point { Point: f32 } let Points = Point(a.Point).Point;", &["Point"], 7);
        assert_eq!(text, "struct Point_7 { Point: f32 } let Points = Point_7(a.Point).Point;");
    }

    #[test]
    fn large_arrays_are_copied_in_loops_and_their_turns_are_known() {
        let mut copies = Copies::reading();
        copies.message("m", "at", 0, Many::LAYOUT);
        assert_eq!((copies.loops, copies.turns), (2, 4 + 3 * 21));
        assert!(copies.text.contains("m.wide[1] = bitcast<u32>(word(at + 1u));"), "{}", copies.text);
        let inner = "m.points[i0][i1].y = bitcast<f32>(word(at + i0 * 40u + i1 * 2u + 3u));";
        assert!(copies.text.contains(inner), "{}", copies.text);
        assert!(copies.text.contains("m.numbers[3] = bitcast<i32>(word(at + 125u));"), "{}", copies.text);
    }
}
