//! The JSON of Felix: reading plain cache gets, writing their answers, base64, and what is wrong with a text.
//!
//! A get that is anything but plain (an escape, an unknown field) is left to the session, so the reader is a small one over
//! flat objects. No recursion anywhere: hostile depth costs a stack of its own, bounded by the caller. No Python object is
//! touched.

use crate::blip::be;
use crate::felix::{HEADER_BYTES, header};
use std::borrow::Cow;
use std::collections::HashSet;

// -- base64 -----------------------------------------------------------------------------------------------------------

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The two characters of every 12 bits: half the steps of one character at a time, in 8 KiB.
static PAIRS: [[u8; 2]; 4096] = {
    let mut pairs = [[0; 2]; 4096];
    let mut i = 0;
    while i < pairs.len() {
        pairs[i] = [ALPHABET[i >> 6], ALPHABET[i & 63]];
        i += 1;
    }
    pairs
};

pub fn base64_size(size: usize) -> usize {
    size.div_ceil(3) * 4
}

/// Fills out, which has base64_size(data) bytes.
pub fn put_base64(out: &mut [u8], data: &[u8]) {
    // Six bytes at a time, of eight that are loaded; then three.
    let long = data.windows(8).step_by(6).len();
    let (fronts, out) = out.split_at_mut(8 * long);
    for (to, from) in fronts.chunks_exact_mut(8).zip(data.windows(8).step_by(6)) {
        let bits = u64::from_be_bytes(be(from, 0)) >> 16;
        let pair = |shift: u32| PAIRS[(bits >> shift & 0xFFF) as usize];
        let ([a, b], [c, d], [e, f], [g, h]) = (pair(36), pair(24), pair(12), pair(0));
        to.copy_from_slice(&[a, b, c, d, e, f, g, h]);
    }
    let data = &data[6 * long..];
    let whole = data.len() / 3;
    let (front, last) = out.split_at_mut(4 * whole);
    for (to, from) in front.chunks_exact_mut(4).zip(data.chunks_exact(3)) {
        let bits = usize::from(from[0]) << 16 | usize::from(from[1]) << 8 | usize::from(from[2]);
        to[..2].copy_from_slice(&PAIRS[bits >> 12]);
        to[2..].copy_from_slice(&PAIRS[bits & 0xFFF]);
    }
    match data[3 * whole..] {
        [a] => {
            last[..2].copy_from_slice(&PAIRS[usize::from(a) << 4]);
            last[2..].copy_from_slice(b"==");
        }
        [a, b] => {
            let bits = usize::from(a) << 16 | usize::from(b) << 8;
            last[..2].copy_from_slice(&PAIRS[bits >> 12]);
            last[2] = PAIRS[bits & 0xFFF][0];
            last[3] = b'=';
        }
        _ => {}
    }
}

// -- reading ----------------------------------------------------------------------------------------------------------

/// How many bytes of d come before the first `"`, `\` or control character: eight at a time. A borrow in the sums can only
/// mark a byte behind one that is marked rightly, so the first mark is always right.
#[inline]
fn plain_bytes(d: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut at = 0;
    for word in d.chunks_exact(8) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        let word = u64::from_le_bytes(bytes);
        let (quote, slash) = (word ^ (ONES * 0x22), word ^ (ONES * 0x5C));
        let found = word.wrapping_sub(ONES * 0x20) & !word
            | quote.wrapping_sub(ONES) & !quote
            | slash.wrapping_sub(ONES) & !slash;
        if found & HIGH != 0 {
            return at + ((found & HIGH).trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + d[at..].iter().take_while(|b| **b >= 0x20 && **b != b'"' && **b != b'\\').count()
}

/// A place in a text.
pub struct Cursor<'a> {
    d: &'a [u8],
    pub at: usize,
    escapes: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(d: &'a [u8]) -> Cursor<'a> {
        Cursor { d, at: 0, escapes: 0 }
    }

    /// The next byte that is no white space.
    #[inline]
    pub fn blank(&mut self) -> Option<u8> {
        while let Some(&b) = self.d.get(self.at) {
            if !matches!(b, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(b);
            }
            self.at += 1;
        }
        None
    }

    /// Passes white space and this byte behind it.
    #[inline]
    pub fn pass(&mut self, byte: u8) -> Option<()> {
        if self.blank()? != byte {
            return None;
        }
        self.at += 1;
        Some(())
    }

    /// A string without escapes behind white space.
    #[inline]
    pub fn plain(&mut self) -> Option<&'a [u8]> {
        self.pass(b'"')?;
        let start = self.at;
        self.at += plain_bytes(&self.d[start..]);
        if self.d.get(self.at) != Some(&b'"') {
            return None;
        }
        self.at += 1;
        let text = &self.d[start..self.at - 1];
        std::str::from_utf8(text).ok().map(|_| text)
    }

    fn digits(&mut self) -> bool {
        let start = self.at;
        while self.d.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        self.at > start
    }

    /// A whole number below 2**64 as it is written.
    pub fn whole(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        self.digits();
        let text = &self.d[start..self.at];
        if text.len() > 1 && text[0] == b'0' {
            return None;
        }
        std::str::from_utf8(text).ok()?.parse::<u64>().ok().map(|_| text)
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.d.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    /// A number of RFC 8259; false if there is none. What may not stand behind it is the next reader's matter.
    fn number(&mut self) -> bool {
        self.take(b'-');
        if !self.take(b'0') && !self.digits() {
            return false;
        }
        if self.take(b'.') && !self.digits() {
            return false;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            return self.digits();
        }
        true
    }

    fn four_hex(&mut self) -> Option<u32> {
        let text = self.d.get(self.at..self.at + 4)?;
        let mut number = 0;
        for b in text {
            number = number << 4 | char::from(*b).to_digit(16)?;
        }
        self.at += 4;
        Some(number)
    }

    /// The character of the escape behind a backslash; None also for half of a surrogate pair.
    fn escape(&mut self) -> Option<char> {
        let b = *self.d.get(self.at)?;
        self.at += 1;
        let high = match b {
            b'"' | b'\\' | b'/' => return Some(char::from(b)),
            b'b' => return Some('\u{8}'),
            b'f' => return Some('\u{c}'),
            b'n' => return Some('\n'),
            b'r' => return Some('\r'),
            b't' => return Some('\t'),
            b'u' => self.four_hex()?,
            _ => return None,
        };
        if !(0xD800..0xDC00).contains(&high) {
            return char::from_u32(high);
        }
        if !self.take(b'\\') || !self.take(b'u') {
            return None;
        }
        self.escapes += 1;
        let low = self.four_hex()?;
        if !(0xDC00..0xE000).contains(&low) {
            return None;
        }
        char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    }

    /// A string of a text that is valid UTF-8, escapes resolved.
    fn string(&mut self) -> Option<Cow<'a, [u8]>> {
        if !self.take(b'"') {
            return None;
        }
        let mut start = self.at;
        let mut out: Option<Vec<u8>> = None;
        loop {
            self.at += plain_bytes(&self.d[self.at..]);
            let piece = &self.d[start..self.at];
            match self.d.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(match out {
                        None => Cow::Borrowed(piece),
                        Some(mut text) => {
                            text.extend(piece);
                            Cow::Owned(text)
                        }
                    });
                }
                b'\\' => {
                    self.at += 1;
                    self.escapes += 1;
                    let text = out.get_or_insert_default();
                    text.extend(piece);
                    let one = self.escape()?;
                    text.extend(one.encode_utf8(&mut [0; 4]).as_bytes());
                    start = self.at;
                }
                _ => return None,
            }
        }
    }
}

// -- gets of a cache --------------------------------------------------------------------------------------------------

/// The names of a cache: tenant, namespace, cache. All of them, or none.
pub type Scope<'a> = Option<[&'a [u8]; 3]>;

const SCOPE_NAMES: [&[u8]; 3] = [b"tenant_id", b"namespace", b"cache"];

/// A plain cache_get. request_id is as it was written, with its quotes if it is text.
pub struct Get<'a> {
    pub scope: Scope<'a>,
    pub key: &'a [u8],
    request_id: Option<&'a [u8]>,
}

pub fn once<'a>(place: &mut Option<&'a [u8]>, text: &'a [u8]) -> Option<()> {
    if place.replace(text).is_some() { None } else { Some(()) }
}

/// What the gets of a run begin with, up to the key: most clients write them alike, so the next one is compared with it.
#[derive(Default)]
pub struct Run<'a> {
    front: &'a [u8],
    scope: Scope<'a>,
}

impl<'a> Run<'a> {
    /// The cache_get in a payload, or None if it is not a plain one.
    pub fn parse(&mut self, d: &'a [u8]) -> Option<Get<'a>> {
        if !self.front.is_empty() && d.starts_with(self.front) {
            let mut cursor = Cursor { d, at: self.front.len() - 1, escapes: 0 };
            if let Some((key, request_id)) = rest_of(&mut cursor) {
                return Some(Get { scope: self.scope, key, request_id });
            }
        }
        self.parse_all(d)
    }

    fn parse_all(&mut self, d: &'a [u8]) -> Option<Get<'a>> {
        let mut cursor = Cursor::new(d);
        cursor.pass(b'{')?;
        let mut scope: [Option<&[u8]>; 3] = [None; 3];
        let (mut kind, mut key, mut request_id) = (None, None, None);
        let (mut front, mut named) = (0, 0);
        loop {
            let name = cursor.plain()?;
            cursor.pass(b':')?;
            match name {
                b"type" => once(&mut kind, cursor.plain()?)?,
                b"key" => {
                    once(&mut key, cursor.plain()?)?;
                    named = scope.iter().flatten().count();
                    if kind.is_some() && request_id.is_none() {
                        front = cursor.at - key.map_or(0, <[u8]>::len) - 1;
                    }
                }
                b"tenant_id" => once(&mut scope[0], cursor.plain()?)?,
                b"namespace" => once(&mut scope[1], cursor.plain()?)?,
                b"cache" => once(&mut scope[2], cursor.plain()?)?,
                b"request_id" if cursor.blank()? == b'"' => {
                    let start = cursor.at;
                    cursor.plain()?;
                    once(&mut request_id, &d[start..cursor.at])?;
                }
                b"request_id" => once(&mut request_id, cursor.whole()?)?,
                _ => return None,
            }
            match cursor.blank()? {
                b',' => cursor.at += 1,
                b'}' => break,
                _ => return None,
            }
        }
        cursor.at += 1;
        if cursor.blank().is_some() || kind != Some(b"cache_get") {
            return None;
        }
        // All that decides about the cache stands before the key.
        let is_alike = front > 0 && named == scope.iter().flatten().count();
        let scope = match scope {
            [None, None, None] => None,
            [Some(tenant), Some(namespace), Some(cache)] => Some([tenant, namespace, cache]),
            _ => return None,
        };
        if is_alike {
            (self.front, self.scope) = (&d[..front], scope);
        }
        Some(Get { scope, key: key?, request_id })
    }
}

/// What stands behind the front of a get, from the quote before the key on: the key, and perhaps a request_id. None: something else.
fn rest_of<'a>(cursor: &mut Cursor<'a>) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    const REQUEST_ID: &[u8] = b",\"request_id\":";
    let key = cursor.plain()?;
    let mut request_id = None;
    if cursor.d[cursor.at..].starts_with(REQUEST_ID) {
        cursor.at += REQUEST_ID.len();
        let start = cursor.at;
        let text = if cursor.d.get(start) == Some(&b'"') { cursor.plain()? } else { cursor.whole()? };
        request_id = Some(if text.len() == cursor.at - start { text } else { &cursor.d[start..cursor.at] });
    }
    (cursor.d[cursor.at..] == *b"}").then_some((key, request_id))
}

/// Answers to gets, and what the last of them began with.
#[derive(Default)]
pub struct Reply<'a> {
    pub frames: Vec<u8>,
    front: Vec<u8>,
    of: Option<Scope<'a>>,
}

impl<'a> Reply<'a> {
    /// With room for the answers to a read of this size: values are mostly as long as what is asked with.
    pub fn new(read_bytes: usize) -> Reply<'a> {
        Reply { frames: Vec::with_capacity(3 * read_bytes.min(ROOM_BYTES_MAX)), ..Reply::default() }
    }

    /// Appends the frame that answers a get, unless it would have over frame_bytes_max; whether it did.
    pub fn add(&mut self, got: &Get<'a>, hit: Option<(&[u8], Option<u64>)>, frame_bytes_max: usize) -> bool {
        if self.of != Some(got.scope) {
            self.front.clear();
            self.front.extend([0; HEADER_BYTES]);
            self.front.extend(b"{\"type\":\"cache_value\"");
            for (name, text) in SCOPE_NAMES.iter().zip(got.scope.iter().flatten()) {
                for piece in [b",\"", *name, b"\":\"", *text, b"\""] {
                    self.front.extend(piece);
                }
            }
            self.front.extend(b",\"key\":\"");
            self.of = Some(got.scope);
        }
        let out = &mut self.frames;
        let start = out.len();
        let value = hit.map_or(&[][..], |(value, _)| value);
        let request_id = got.request_id.unwrap_or_default();
        out.reserve(self.front.len() + got.key.len() + base64_size(value.len()) + request_id.len() + FIXED_BYTES_MAX);
        out.extend(&self.front);
        out.extend(got.key);
        match hit {
            None => out.extend(b"\",\"value\":null"),
            Some((value, _)) => {
                out.extend(b"\",\"value\":\"");
                let at = out.len();
                out.resize(at + base64_size(value.len()), 0);
                put_base64(&mut out[at..], value);
                out.push(b'"');
            }
        }
        if got.request_id.is_some() {
            out.extend(b",\"request_id\":");
            out.extend(request_id);
        }
        if let Some((_, Some(version))) = hit {
            out.extend(b",\"version\":");
            put_decimal(out, version);
        }
        out.push(b'}');
        let length = out.len() - start - HEADER_BYTES;
        if length > frame_bytes_max {
            out.truncate(start);
            return false;
        }
        out[start..start + HEADER_BYTES].copy_from_slice(&header(0, length));
        true
    }
}

/// Of a read, for whose answers room is made at once.
const ROOM_BYTES_MAX: usize = 8 << 10;
/// Of an answer beside its front, key, value and request_id.
const FIXED_BYTES_MAX: usize = 64;

pub fn put_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend(&digits[at..]);
}

// -- what is wrong with a text ----------------------------------------------------------------------------------------

pub const MAX_DEPTH: i64 = 10_000;
pub const FINE: u8 = 0;
const NOT_JSON: u8 = 1;
const DUPLICATE_KEY: u8 = 2;
const TOO_DEEP: u8 = 3;
const TOO_MANY_KEYS: u8 = 4;
const TOO_MANY_VALUES: u8 = 5;

/// Values of one text, and escapes in its strings: what whoever reads it after us takes more time for than for its bytes.
const VALUES_MAX: usize = 50_000;
const ESCAPES_MAX: usize = 500_000;

/// Bytes of a type that is worth telling.
const TYPE_BYTES_MAX: usize = 64;

/// Keys of one object: no message has more than a few, and each costs a look at all others.
const KEYS_MAX: usize = 1024;

/// Keys of an object that are compared one by one; from more on they are hashed.
const NEAR_KEYS: usize = 8;

/// An open array, or an open object: its keys are those of the scan from `first` on, until there are many.
enum Open<'a> {
    Array,
    Object { first: usize, many: Option<HashSet<Cow<'a, [u8]>>> },
}

/// What may come next.
#[derive(Clone, Copy, PartialEq)]
enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    CommaOrEnd,
}

struct Scan<'a> {
    cursor: Cursor<'a>,
    open: Vec<Open<'a>>,
    keys: Vec<Cow<'a, [u8]>>,
    expect: Expect,
    depth_max: usize,
    values: usize,
    at_type: bool,
    kind: Vec<u8>,
}

impl<'a> Scan<'a> {
    /// The key must be the first of its name in the innermost object, and not one too many.
    fn judge(&mut self, key: Cow<'a, [u8]>) -> u8 {
        let Some(Open::Object { first, many }) = self.open.last_mut() else { return DUPLICATE_KEY };
        if let Some(many) = many {
            return match many.insert(key) {
                false => DUPLICATE_KEY,
                true if many.len() > KEYS_MAX => TOO_MANY_KEYS,
                true => FINE,
            };
        }
        if self.keys[*first..].contains(&key) {
            return DUPLICATE_KEY;
        }
        self.keys.push(key);
        if self.keys.len() - *first > NEAR_KEYS {
            *many = Some(self.keys.drain(*first..).collect());
        }
        FINE
    }

    fn key(&mut self) -> u8 {
        let Some(key) = self.cursor.string() else { return NOT_JSON };
        if self.cursor.escapes > ESCAPES_MAX {
            return TOO_MANY_VALUES;
        }
        self.at_type = self.open.len() == 1 && key.as_ref() == b"type";
        let fault = self.judge(key);
        if fault != FINE {
            return fault;
        }
        self.expect = Expect::Value;
        if self.cursor.pass(b':').is_none() { NOT_JSON } else { FINE }
    }

    fn value(&mut self, byte: u8) -> u8 {
        self.expect = Expect::CommaOrEnd;
        self.values += 1;
        if self.values > VALUES_MAX {
            return TOO_MANY_VALUES;
        }
        let at_type = std::mem::take(&mut self.at_type);
        let sound = match byte {
            b'{' | b'[' => {
                if self.open.len() == self.depth_max {
                    return TOO_DEEP;
                }
                self.cursor.at += 1;
                let object = byte == b'{';
                self.open.push(if object { Open::Object { first: self.keys.len(), many: None } } else { Open::Array });
                self.expect = if object { Expect::KeyOrEnd } else { Expect::ValueOrEnd };
                true
            }
            b'"' => {
                let Some(text) = self.cursor.string() else { return NOT_JSON };
                if self.cursor.escapes > ESCAPES_MAX {
                    return TOO_MANY_VALUES;
                }
                if at_type && text.len() <= TYPE_BYTES_MAX {
                    self.kind = text.into_owned();
                }
                true
            }
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.cursor.number(),
        };
        if sound { FINE } else { NOT_JSON }
    }

    fn word(&mut self, word: &[u8]) -> bool {
        let found = self.cursor.d[self.cursor.at..].starts_with(word);
        self.cursor.at += word.len();
        found
    }

    fn step(&mut self, object: bool) -> u8 {
        let Some(byte) = self.cursor.blank() else { return NOT_JSON };
        let may_end = !matches!(self.expect, Expect::Value | Expect::Key);
        if may_end && byte == (if object { b'}' } else { b']' }) {
            self.cursor.at += 1;
            if let Some(Open::Object { first, .. }) = self.open.pop() {
                self.keys.truncate(first);
            }
            self.expect = Expect::CommaOrEnd;
            return FINE;
        }
        match self.expect {
            Expect::CommaOrEnd => {
                self.cursor.at += 1;
                self.expect = if object { Expect::Key } else { Expect::Value };
                if byte == b',' { FINE } else { NOT_JSON }
            }
            Expect::Key | Expect::KeyOrEnd => self.key(),
            Expect::Value | Expect::ValueOrEnd => self.value(byte),
        }
    }
}

impl<'a> Scan<'a> {
    fn new(d: &'a [u8], depth_max: usize) -> Scan<'a> {
        Scan {
            cursor: Cursor::new(d),
            open: Vec::new(),
            keys: Vec::new(),
            expect: Expect::Value,
            depth_max,
            values: 0,
            at_type: false,
            kind: Vec::new(),
        }
    }

    /// The first fault of a text that begins with this byte.
    fn run(&mut self, first: u8) -> u8 {
        let mut fault = self.value(first);
        while fault == FINE {
            match self.open.last() {
                None => return if self.cursor.blank().is_none() { FINE } else { NOT_JSON },
                Some(inner) => fault = self.step(matches!(inner, Open::Object { .. })),
            }
        }
        fault
    }
}

/// The first fault of a text, and the type of the object it is: empty if it has none.
pub fn head(d: &[u8], depth_max: usize) -> (u8, Vec<u8>) {
    if std::str::from_utf8(d).is_err() {
        return (NOT_JSON, Vec::new());
    }
    let mut scan = Scan::new(d, depth_max);
    if scan.cursor.blank() != Some(b'{') {
        return (NOT_JSON, Vec::new());
    }
    let fault = scan.run(b'{');
    (fault, if fault == FINE { scan.kind } else { Vec::new() })
}

/// Is this text, which is UTF-8, one sound value of any kind?
pub fn is_sound(d: &[u8], depth_max: usize) -> bool {
    let mut scan = Scan::new(d, depth_max);
    scan.cursor.blank().is_some_and(|first| scan.run(first) == FINE)
}

// -- how much there is to read ------------------------------------------------------------------------------------------

/// Values of any JSON text at most, and how deep they are nested, whether it is sound or not. Strings are passed over; one
/// that does not end runs to the end of the text.
pub fn shape(d: &[u8]) -> (usize, usize) {
    let (mut at, mut values, mut depth, mut deepest) = (0, 1usize, 0usize, 0usize);
    while let Some(&byte) = d.get(at) {
        at += 1;
        match byte {
            b'"' => loop {
                match d.get(at) {
                    None => break,
                    Some(b'"') => {
                        at += 1;
                        break;
                    }
                    Some(b'\\') => at += 2,
                    Some(_) => at += 1,
                }
            },
            b',' => values += 1,
            b'[' | b'{' => {
                values += 1;
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (values, deepest)
}
