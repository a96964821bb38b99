//! Where everything lies in a resident kernel's memory, for host and device alike.
//!
//! A kernel's *region* is made of 32-bit words, because that is what WGSL has atomics for; a 64-bit value is two words,
//! the low one first. In order: the [`ControlBlock`], the [`TelemetryBlock`], the inbound ring for urgent messages, the
//! inbound ring for the others, the outbound ring. What changes with every message lies apart from what somebody polls,
//! so that nobody takes a line away from a side that waits.

use std::{fmt::Write as _, sync::atomic::AtomicU32};

/// The first 128 bytes of a region: what the host asks for, and how the kernel is.
///
/// It is only ever reached through a shared reference and word by word, on both sides.
///
/// ```
/// use millrace_resident::layout::ControlBlock;
/// assert_eq!((size_of::<ControlBlock>(), align_of::<ControlBlock>()), (128, 128));
/// ```
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ControlBlock {
    /// The line that both sides poll and that changes rarely. Here: [`MAGIC`], once the region is ready.
    pub magic: AtomicU32,
    /// Host: counted up whenever it changed something below; the one word that the kernel polls.
    pub request: AtomicU32,
    /// Host: what the kernel should do, a [`crate::Command`].
    pub command: AtomicU32,
    /// Host: counted up for each checkpoint that is asked for.
    pub checkpoint_wanted: AtomicU32,
    /// Host, while draining: the urgent ring's position at which to stop.
    pub drain_high: AtomicU32,
    /// Host, while draining: the normal ring's position at which to stop.
    pub drain_normal: AtomicU32,
    /// Kernel: how it is, a [`crate::Status`].
    pub status: AtomicU32,
    /// Kernel: the last `request` that took effect.
    pub acknowledged: AtomicU32,
    /// Kernel: checkpoints that were made because they were asked for.
    pub checkpoint_made: AtomicU32,
    /// Kernel: why it failed, a code, see [`fault`].
    pub fault: AtomicU32,
    /// Not used.
    pub polled_reserved: [AtomicU32; 6],

    /// The kernel's own line, which changes with every message. Here: messages taken from the urgent ring.
    pub high_head: AtomicU32,
    /// Kernel: messages taken from the normal ring.
    pub normal_head: AtomicU32,
    /// Kernel: messages put into the outbound ring.
    pub out_tail: AtomicU32,
    /// Kernel: urgent messages taken in a row while a normal one waited.
    pub burst: AtomicU32,
    /// Never changes: first word of the urgent inbound ring.
    pub high_first: AtomicU32,
    /// Never changes: first word of the normal inbound ring.
    pub normal_first: AtomicU32,
    /// Never changes: first word of the outbound ring.
    pub out_first: AtomicU32,
    /// Never changes: words of an inbound slot.
    pub in_stride: AtomicU32,
    /// Never changes: words of an outbound slot.
    pub out_stride: AtomicU32,
    /// Never changes: slots of each inbound ring, less one.
    pub in_mask: AtomicU32,
    /// Never changes: slots of the outbound ring, less one.
    pub out_mask: AtomicU32,
    /// Never changes: urgent messages in a row after which a normal one gets its turn.
    pub starvation_bound: AtomicU32,
    /// Not used.
    pub kernel_reserved: [AtomicU32; 4],
}

/// The 64 bytes behind the control block: what the kernel did so far. The kernel writes them, everybody may look.
///
/// ```
/// use millrace_resident::layout::TelemetryBlock;
/// assert_eq!((size_of::<TelemetryBlock>(), align_of::<TelemetryBlock>()), (64, 64));
/// ```
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct TelemetryBlock {
    /// Odd while the rest is being changed.
    pub version: AtomicU32,
    /// One while a handler runs.
    pub busy: AtomicU32,
    /// Messages handled, two words.
    pub handled: [AtomicU32; 2],
    /// Messages that could not be read or whose handler failed, two words.
    pub failed: [AtomicU32; 2],
    /// Messages put into the outbound ring or sent to other kernels, two words.
    pub sent: [AtomicU32; 2],
    /// The clock of the last message, two words.
    pub clock: [AtomicU32; 2],
    /// Messages that a lossy link had no room for, two words.
    pub dropped: [AtomicU32; 2],
    /// Times it was started again after a failure.
    pub restarts: AtomicU32,
    /// Checkpoints made, asked for or not.
    pub checkpoints: AtomicU32,
    /// Times it found nothing to do and went to sleep, or to its next lease.
    pub rests: AtomicU32,
    /// Not used.
    pub reserved: AtomicU32,
}

/// What the first word of a region says once it is ready.
///
/// ```
/// use millrace_resident::layout::{MAGIC, wgsl};
/// assert_eq!(&MAGIC.to_le_bytes(), b"MILL");
/// assert!(wgsl().contains(&format!("const MAGIC: u32 = {MAGIC}u;")), "a device sees the same");
/// ```
pub const MAGIC: u32 = u32::from_le_bytes(*b"MILL");

/// Why a kernel failed, or a message could not be handled, as a number.
///
/// ```
/// use millrace_resident::layout::{fault, wgsl};
/// assert_eq!([fault::NONE, fault::PANIC, fault::WRONG_TYPE, fault::WRONG_LENGTH], [0, 1, 2, 3]);
/// assert_eq!([fault::INVALID, fault::NO_PAYLOAD, fault::TOO_LONG], [4, 5, 6]);
/// assert!(wgsl().contains(&format!("const FAULT_TOO_LONG: u32 = {}u;", fault::TOO_LONG)));
/// ```
pub mod fault {
    /// Nothing is wrong.
    pub const NONE: u32 = 0;
    /// The handler panicked.
    pub const PANIC: u32 = 1;
    /// The message is of a type that the kernel does not handle.
    pub const WRONG_TYPE: u32 = 2;
    /// The message is longer or shorter than its type.
    pub const WRONG_LENGTH: u32 = 3;
    /// The message's bytes are not what they should be.
    pub const INVALID: u32 = 4;
    /// What belongs to the message is gone.
    pub const NO_PAYLOAD: u32 = 5;
    /// The handler's loops make more turns than the device's driver allows.
    pub const TOO_LONG: u32 = 6;

    /// A fault in words.
    pub(crate) fn text(code: u32) -> &'static str {
        match code {
            WRONG_TYPE => "the message is of a type that the kernel does not handle",
            WRONG_LENGTH => "the message is longer or shorter than its type",
            INVALID => "the message is not what it should be",
            TOO_LONG => {
                "the handler's loops make more turns than the device's driver allows, and it would end them early"
            }
            _ => "the kernel gave no reason",
        }
    }
}

/// Bytes in front of every message.
///
/// ```
/// use millrace_resident::layout::{HEADER, LINE, RegionLayout, SMALL};
/// assert_eq!((HEADER + SMALL, SMALL), (LINE, 16));
/// assert_eq!(RegionLayout::new(8, 8, SMALL, SMALL + 1).in_payload(), SMALL, "a slot of one line");
/// ```
pub const HEADER: usize = 48;
/// A slot's size is a multiple of this: a cache line.
pub const LINE: usize = 64;
/// Bytes of message that fit into a slot of one line.
pub const SMALL: usize = LINE - HEADER;

/// Words of a slot's header.
///
/// ```
/// use millrace_resident::layout::{HEADER, SLOT, slot};
/// let words = [slot::SEQUENCE, slot::TYPE, slot::LENGTH, slot::FLAGS, slot::ID, slot::CORRELATION, slot::CLOCK];
/// assert_eq!(words, [0, 1, 2, 3, 4, 6, 8]);
/// assert_eq!([slot::BUFFER, slot::GENERATION, slot::PAYLOAD], [10, 11, HEADER / 4]);
/// assert!(SLOT.iter().any(|field| field.name == "clock" && field.offset == 4 * slot::CLOCK));
/// ```
pub mod slot {
    /// Whose turn it is: see `slots.rs`. Written last.
    pub const SEQUENCE: usize = 0;
    /// The message's type.
    pub const TYPE: usize = 1;
    /// Bytes of the message in the slot.
    pub const LENGTH: usize = 2;
    /// Flags, and the priority in the lowest two bits.
    pub const FLAGS: usize = 3;
    /// The message's own number, two words.
    pub const ID: usize = 4;
    /// The number of the message that this one answers, two words.
    pub const CORRELATION: usize = 6;
    /// The hybrid logical clock, two words.
    pub const CLOCK: usize = 8;
    /// Of a payload outside the slot: which buffer. Of a failure: a [`super::fault`].
    pub const BUFFER: usize = 10;
    /// Which life of that buffer.
    pub const GENERATION: usize = 11;
    /// The message itself.
    pub const PAYLOAD: usize = 12;
}

/// Bits of a slot's `FLAGS`.
///
/// ```
/// use millrace_resident::layout::flags;
/// let bits = [flags::ASK, flags::ATTACHED, flags::FAILED, flags::VOID, flags::SILENT];
/// assert_eq!(bits.iter().fold(flags::PRIORITY, |all, bit| all | bit), 0b111_1111, "no two share a bit");
/// assert_eq!((flags::ASK | 1) & flags::PRIORITY, 1, "a normal message that is to be answered");
/// ```
pub mod flags {
    /// The priority: 0 high, 1 normal.
    pub const PRIORITY: u32 = 3;
    /// The sender waits for the answer to this message.
    pub const ASK: u32 = 1 << 2;
    /// There is more of it in a buffer.
    pub const ATTACHED: u32 = 1 << 3;
    /// An answer that is an error: `BUFFER` says which.
    pub const FAILED: u32 = 1 << 4;
    /// Nothing is in the slot: whoever claimed it changed its mind.
    pub const VOID: u32 = 1 << 5;
    /// It is handled, but not answered: it was before the device was lost, or nobody waits any more.
    pub const SILENT: u32 = 1 << 6;
    /// Its sender runs the kernel itself, if it can; or, if it does not ask, may do so when it asks: see `drive.rs`.
    pub const WILLING: u32 = 1 << 7;
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<ControlBlock>() == 128 && align_of::<ControlBlock>() == 128);
    assert!(size_of::<TelemetryBlock>() == 64 && align_of::<TelemetryBlock>() == 64);
    assert!(offset_of!(ControlBlock, high_head) == LINE, "the kernel's line is its own");
    assert!(slot::PAYLOAD * 4 == HEADER && HEADER.is_multiple_of(16));
};

/// One field of a block or a message: its name, where it lies, and how each side writes it.
///
/// ```
/// use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Point { at: [f32; 2], id: u64 }
/// let id = &Point::LAYOUT.fields[1];
/// assert_eq!((id.name, id.offset, id.size, id.rust, id.wgsl), ("id", 8, 8, "u64", "array<u32, 2>"));
/// assert!(id.nested.is_none());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct FieldLayout {
    /// Its name.
    pub name: &'static str,
    /// Bytes before it.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Its type in Rust.
    pub rust: &'static str,
    /// Its type in WGSL.
    pub wgsl: &'static str,
    /// Of a nested message, or an array of them.
    pub nested: Option<&'static MessageLayout>,
}

/// What a message looks like on both sides.
///
/// ```
/// use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Point { x: f32, y: f32 }
/// let layout = Point::LAYOUT;
/// assert_eq!((layout.name, layout.size, layout.fields.len()), ("Point", 8, 2));
/// assert_eq!((layout.id, layout.wgsl.starts_with("struct Point {")), (Point::TYPE, true));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MessageLayout {
    /// Its name, in Rust and in WGSL.
    pub name: &'static str,
    /// Made from the name and all fields. Never zero.
    pub id: u32,
    /// Bytes.
    pub size: usize,
    /// Its fields, in order.
    pub fields: &'static [FieldLayout],
    /// The struct in WGSL, without those nested in it.
    pub wgsl: &'static str,
}

impl MessageLayout {
    /// The struct in WGSL, behind those nested in it.
    ///
    /// ```
    /// use millrace_resident::Message;
    /// #[derive(Clone, Copy, Message)]
    /// #[repr(C)]
    /// struct Point { x: f32, y: f32 }
    /// #[derive(Clone, Copy, Message)]
    /// #[repr(C)]
    /// struct Line { ends: [Point; 2], id: u64 }
    /// assert_eq!(Line::LAYOUT.definitions(), "\
    /// struct Point {
    ///     x: f32,
    ///     y: f32,
    /// }
    /// struct Line {
    ///     ends: array<Point, 2>,
    ///     id: array<u32, 2>,
    /// }
    /// ");
    /// ```
    pub fn definitions(&self) -> String {
        definitions(&[self])
    }

    fn collect<'a>(&'a self, into: &mut Vec<&'a MessageLayout>) {
        for nested in self.fields.iter().filter_map(|field| field.nested) {
            nested.collect(into);
        }
        if !into.iter().any(|layout| layout.id == self.id) {
            into.push(self);
        }
    }
}

/// Several messages in WGSL, each struct once.
///
/// ```
/// use millrace_resident::{Message, layout};
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Point { x: f32, y: f32 }
/// let text = layout::definitions(&[Point::LAYOUT, Point::LAYOUT]);
/// assert_eq!(text, Point::LAYOUT.wgsl);
/// ```
pub fn definitions(messages: &[&MessageLayout]) -> String {
    let mut all = Vec::new();
    messages.iter().for_each(|message| message.collect(&mut all));
    all.iter().map(|layout| layout.wgsl).collect()
}

macro_rules! fields {
    ($block:ident: $($name:ident)*) => {
        &[$(FieldLayout {
            name: stringify!($name),
            offset: std::mem::offset_of!($block, $name),
            size: field_size(|block: &$block| &block.$name),
            rust: "u32",
            wgsl: "u32",
            nested: None,
        }),*]
    };
}

/// The size of a field, which is all that is taken from the function's type.
const fn field_size<B, F>(_: fn(&B) -> &F) -> usize {
    size_of::<F>()
}

/// The fields of the [`ControlBlock`].
///
/// ```
/// use millrace_resident::layout::CONTROL;
/// let status = CONTROL.iter().find(|field| field.name == "status").unwrap();
/// assert_eq!((status.offset, status.size), (24, 4));
/// assert_eq!(CONTROL.iter().map(|field| field.size).sum::<usize>(), 128, "no gaps");
/// ```
pub const CONTROL: &[FieldLayout] = fields!(ControlBlock:
    magic request command checkpoint_wanted drain_high drain_normal status acknowledged checkpoint_made fault
    polled_reserved high_head normal_head out_tail burst high_first normal_first out_first in_stride out_stride in_mask
    out_mask starvation_bound kernel_reserved);

/// The fields of the [`TelemetryBlock`].
///
/// ```
/// use millrace_resident::layout::TELEMETRY;
/// let handled = TELEMETRY.iter().find(|field| field.name == "handled").unwrap();
/// assert_eq!((handled.offset, handled.size), (8, 8));
/// assert_eq!(TELEMETRY.iter().map(|field| field.size).sum::<usize>(), 64, "no gaps");
/// ```
pub const TELEMETRY: &[FieldLayout] = fields!(TelemetryBlock:
    version busy handled failed sent clock dropped restarts checkpoints rests reserved);

/// The fields of a slot's header.
///
/// ```
/// use millrace_resident::layout::{HEADER, SLOT};
/// assert_eq!((SLOT[0].name, SLOT[0].offset), ("sequence", 0));
/// assert_eq!(SLOT.iter().map(|field| field.size).sum::<usize>(), HEADER, "no gaps");
/// ```
pub const SLOT: &[FieldLayout] = &[
    word("sequence", slot::SEQUENCE, 1),
    word("type", slot::TYPE, 1),
    word("length", slot::LENGTH, 1),
    word("flags", slot::FLAGS, 1),
    word("id", slot::ID, 2),
    word("correlation", slot::CORRELATION, 2),
    word("clock", slot::CLOCK, 2),
    word("buffer", slot::BUFFER, 1),
    word("generation", slot::GENERATION, 1),
];

const fn word(name: &'static str, index: usize, words: usize) -> FieldLayout {
    FieldLayout { name, offset: index * 4, size: words * 4, rust: "u32", wgsl: "u32", nested: None }
}

/// Bytes before the telemetry.
pub const TELEMETRY_AT: usize = size_of::<ControlBlock>();
/// Bytes before the first ring.
///
/// ```
/// use millrace_resident::layout::{RINGS_AT, RegionLayout, TELEMETRY_AT};
/// assert_eq!((TELEMETRY_AT, RINGS_AT), (128, 192));
/// assert_eq!(RegionLayout::new(8, 8, 16, 16).high_first() * 4, RINGS_AT);
/// ```
pub const RINGS_AT: usize = TELEMETRY_AT + size_of::<TelemetryBlock>();

/// Everything above as WGSL constants: indices into an `array<atomic<u32>>` that is bound to the region.
///
/// ```
/// let text = millrace_resident::layout::wgsl();
/// assert!(text.contains("const CONTROL_STATUS: u32 = 6u;"));
/// assert!(text.contains("const TELEMETRY_HANDLED: u32 = 34u;"));
/// assert!(text.contains("const SLOT_PAYLOAD: u32 = 12u;"));
/// ```
pub fn wgsl() -> String {
    let mut text = String::new();
    for (prefix, base, fields) in [("CONTROL", 0, CONTROL), ("TELEMETRY", TELEMETRY_AT, TELEMETRY), ("SLOT", 0, SLOT)] {
        for field in fields.iter().filter(|field| !field.name.ends_with("reserved")) {
            let _ =
                writeln!(text, "const {prefix}_{}: u32 = {}u;", field.name.to_uppercase(), (base + field.offset) / 4);
        }
    }
    let numbers = [
        ("SLOT_PAYLOAD", slot::PAYLOAD as u32),
        ("MAGIC", MAGIC),
        ("FLAG_PRIORITY", flags::PRIORITY),
        ("FLAG_ASK", flags::ASK),
        ("FLAG_ATTACHED", flags::ATTACHED),
        ("FLAG_FAILED", flags::FAILED),
        ("FLAG_VOID", flags::VOID),
        ("FLAG_SILENT", flags::SILENT),
        ("FAULT_NONE", fault::NONE),
        ("FAULT_PANIC", fault::PANIC),
        ("FAULT_WRONG_TYPE", fault::WRONG_TYPE),
        ("FAULT_WRONG_LENGTH", fault::WRONG_LENGTH),
        ("FAULT_INVALID", fault::INVALID),
        ("FAULT_NO_PAYLOAD", fault::NO_PAYLOAD),
        ("FAULT_TOO_LONG", fault::TOO_LONG),
    ];
    let states = crate::Status::ALL.map(|status| (format!("STATUS_{}", status.name().to_uppercase()), status as u32));
    let commands =
        crate::Command::ALL.map(|command| (format!("COMMAND_{}", command.name().to_uppercase()), command as u32));
    let numbers = numbers.map(|(name, value)| (name.to_owned(), value));
    for (name, value) in numbers.iter().chain(&states).chain(&commands) {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
    }
    text
}

/// A row of [`table`].
///
/// ```
/// use millrace_resident::layout::table;
/// let rows = table();
/// let row = rows.iter().find(|row| row.field == "handled").unwrap();
/// assert_eq!((row.block, row.offset, row.size), ("Telemetry", 8, 8));
/// assert_eq!(row.wgsl, Some(("TELEMETRY_HANDLED".to_owned(), 34)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Control block, telemetry or slot.
    pub block: &'static str,
    /// The field.
    pub field: &'static str,
    /// Bytes before it in its block.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// The constant's name in WGSL and its value: an index of words.
    pub wgsl: Option<(String, usize)>,
}

/// The layout as rows, for people.
///
/// ```
/// let rows = millrace_resident::layout::table();
/// let status = rows.iter().find(|row| row.field == "status").unwrap();
/// assert_eq!((status.block, status.offset, status.size), ("ControlBlock", 24, 4));
/// ```
pub fn table() -> Vec<Row> {
    let blocks = [
        ("ControlBlock", "CONTROL", 0, CONTROL),
        ("Telemetry", "TELEMETRY", TELEMETRY_AT, TELEMETRY),
        ("slot", "SLOT", 0, SLOT),
    ];
    let rows = blocks.into_iter().flat_map(|(block, prefix, base, fields)| {
        fields.iter().map(move |field| {
            let (offset, size) = (field.offset, field.size);
            let wgsl = (!field.name.ends_with("reserved"))
                .then(|| (format!("{prefix}_{}", field.name.to_uppercase()), (base + offset) / 4));
            Row { block, field: field.name, offset, size, wgsl }
        })
    });
    rows.collect()
}

/// Where the rings of one kernel lie.
///
/// ```
/// use millrace_resident::layout::{RINGS_AT, RegionLayout};
/// let layout = RegionLayout::new(4, 2, 16, 80);
/// assert_eq!(layout.high_first(), RINGS_AT / 4);
/// assert_eq!(layout.normal_first(), layout.high_first() + 4 * layout.in_stride);
/// assert_eq!(layout.out_first(), layout.normal_first() + 4 * layout.in_stride);
/// assert_eq!(layout.words(), layout.out_first() + 2 * layout.out_stride);
/// assert_eq!((layout.in_payload(), layout.out_payload()), (16, 80));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionLayout {
    /// Slots of each inbound ring, a power of two.
    pub inbound: u32,
    /// Slots of the outbound ring, a power of two.
    pub outbound: u32,
    /// Words of an inbound slot.
    pub in_stride: usize,
    /// Words of an outbound slot.
    pub out_stride: usize,
}

impl RegionLayout {
    /// The layout for rings of at least so many slots, with at least so many bytes of message in each.
    ///
    /// ```
    /// use millrace_resident::layout::RegionLayout;
    /// let layout = RegionLayout::new(100, 8, 16, 17);
    /// assert_eq!((layout.inbound, layout.outbound), (128, 8));
    /// assert_eq!((layout.in_stride * 4, layout.out_stride * 4), (64, 128));
    /// assert_eq!(layout.words() * 4, 192 + 2 * 128 * 64 + 8 * 128);
    /// ```
    pub fn new(inbound: usize, outbound: usize, in_payload: usize, out_payload: usize) -> Self {
        let slots = |capacity: usize| capacity.clamp(2, crate::MAX_CAPACITY).next_power_of_two() as u32;
        let stride = |payload: usize| (HEADER + payload).next_multiple_of(LINE) / 4;
        Self {
            inbound: slots(inbound),
            outbound: slots(outbound),
            in_stride: stride(in_payload),
            out_stride: stride(out_payload),
        }
    }

    /// First word of the urgent inbound ring.
    pub fn high_first(&self) -> usize {
        RINGS_AT / 4
    }

    /// First word of the normal inbound ring.
    pub fn normal_first(&self) -> usize {
        self.high_first() + self.inbound as usize * self.in_stride
    }

    /// First word of the outbound ring.
    pub fn out_first(&self) -> usize {
        self.normal_first() + self.inbound as usize * self.in_stride
    }

    /// Words of the whole region.
    pub fn words(&self) -> usize {
        self.out_first() + self.outbound as usize * self.out_stride
    }

    /// Bytes of message that fit into an inbound slot.
    pub fn in_payload(&self) -> usize {
        self.in_stride * 4 - HEADER
    }

    /// Bytes of message that fit into an outbound slot.
    pub fn out_payload(&self) -> usize {
        self.out_stride * 4 - HEADER
    }
}

/// For the derive: whether the fields follow each other and fill the struct.
#[doc(hidden)]
pub const fn without_padding(fields: &[FieldLayout], size: usize) -> bool {
    let (mut at, mut i) = (0, 0);
    while i < fields.len() {
        if fields[i].offset != at {
            return false;
        }
        at += fields[i].size;
        i += 1;
    }
    at == size
}

/// For the derive: whether two names are the same.
#[doc(hidden)]
pub const fn same_text(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// For the derive: FNV-1a over the name and all fields, down to the numbers. Never zero.
#[doc(hidden)]
pub const fn type_id(name: &str, fields: &[FieldLayout]) -> u32 {
    const fn eat(mut hash: u32, bytes: &[u8]) -> u32 {
        let mut i = 0;
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
            i += 1;
        }
        (hash ^ 0xff).wrapping_mul(0x0100_0193) // an end that no text contains
    }
    let mut hash = eat(0x811c_9dc5, name.as_bytes());
    let mut i = 0;
    while i < fields.len() {
        hash = eat(eat(hash, fields[i].name.as_bytes()), fields[i].rust.as_bytes());
        if let Some(nested) = fields[i].nested {
            hash = eat(hash, &nested.id.to_le_bytes());
        }
        i += 1;
    }
    if hash == 0 { 1 } else { hash }
}
