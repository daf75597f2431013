//! SentencePiece's model file: a protocol buffer (`ModelProto`) with the pieces, how they were trained and
//! how a text is normalized before it is split into them.
//!
//! The bytes are untrusted. Every length is held against the bytes that are there, the number and the
//! lengths of pieces are bounded, and what is kept is no larger than the file. Unknown fields are read past,
//! as the format wants it; of a field that stands twice the last one counts.

use std::collections::HashSet;

use crate::text::limits;
use crate::{Error, Result};

/// Pieces of a model. Published ones have up to 902,000.
const MOST_PIECES: usize = 1 << 20;
/// Bytes of a piece. Published ones have up to a hundred.
const MOST_PIECE: usize = 512;
/// Bytes of all pieces: each takes some hundred bytes of memory in the search for pieces.
const MOST_SPELLED: usize = 16 << 20;

/// How pieces are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// The pieces whose scores add up to the most.
    Unigram,
    /// Pairs are merged, best score first.
    Bpe,
}

/// What a piece is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl PieceType {
    /// All of them, in the order of their numbers in files, which begin with 1.
    const ALL: [PieceType; 6] = [
        PieceType::Normal,
        PieceType::Unknown,
        PieceType::Control,
        PieceType::UserDefined,
        PieceType::Unused,
        PieceType::Byte,
    ];

    /// The type of a number in files.
    fn of(number: u64) -> Option<Self> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(at).copied()
    }
}

/// A piece of the vocabulary; its place in the list is its id.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub text: String,
    pub score: f32,
    pub role: PieceType,
}

/// A model as its file describes it.
#[derive(Debug)]
pub(super) struct Model {
    /// The file, for messages.
    pub file: String,
    pub pieces: Vec<Piece>,
    pub algorithm: Algorithm,
    pub byte_fallback: bool,
    /// Id of the one piece that stands for what no piece spells.
    pub unknown: usize,
    pub bos: Option<usize>,
    pub eos: Option<usize>,
    /// The table of replacements, none if text stays as it is.
    pub charsmap: Vec<u8>,
    /// Whether a blank goes in front of a text.
    pub dummy_prefix: bool,
    /// Whether blanks around a text go and those in a row become one.
    pub remove_extra_whitespaces: bool,
}

/// How a text is normalized before it is split into pieces.
pub(super) struct Normalizer<'a> {
    pub charsmap: &'a [u8],
    pub dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
}

/// The fields of both specifications while they are read.
struct Specs {
    model_type: u64,
    byte_fallback: bool,
    whitespace_as_suffix: bool,
    bos: i64,
    eos: i64,
    charsmap: Vec<u8>,
    dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
}

impl Model {
    /// Reads a model; `file` is its name in messages.
    ///
    /// # Errors
    /// [`Error::Format`] with the place and what stands there.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let mut specs = Specs::usual();
        let (mut pieces, mut spelled) = (Vec::new(), 0usize);
        let mut fields = Fields { file, part: "ModelProto", bytes, base: 0, at: 0 };
        while let Some(field) = fields.next()? {
            match field.number {
                1 => {
                    if pieces.len() == MOST_PIECES {
                        return Err(fields.broken(format!("more than {MOST_PIECES} pieces")));
                    }
                    let piece = piece(fields.inner("SentencePiece", &field)?, pieces.len())?;
                    spelled += piece.text.len();
                    if spelled > MOST_SPELLED {
                        return Err(fields.broken(format!("more than {MOST_SPELLED} bytes of pieces")));
                    }
                    pieces.push(piece);
                }
                2 => specs.trainer(fields.inner("TrainerSpec", &field)?)?,
                3 => specs.normalizer(fields.inner("NormalizerSpec", &field)?)?,
                _ => {}
            }
        }
        specs.finish(file, pieces)
    }

    /// A unigram model of which only lists are left: spelling, score and type of every piece. Unknown
    /// characters are spelt by their bytes where all bytes are pieces.
    ///
    /// # Errors
    /// [`Error::Format`] with the piece and what stands there.
    pub fn listed(file: &str, pieces: &[(&str, f32, u64)], normalizer: &Normalizer<'_>) -> Result<Self> {
        let broken = |what: String| Error::format(file, what);
        if pieces.len() > MOST_PIECES {
            return Err(broken(format!("{} pieces; at most {MOST_PIECES} are allowed", pieces.len())));
        }
        let spelled: usize = pieces.iter().map(|(text, ..)| text.len()).sum();
        if spelled > MOST_SPELLED {
            return Err(broken(format!("{spelled} bytes of pieces; at most {MOST_SPELLED} are allowed")));
        }
        let piece = |(id, &(text, score, number)): (usize, &(&str, f32, u64))| {
            if text.is_empty() || text.len() > MOST_PIECE {
                let what = format!("piece {id} has {} bytes; allowed are 1 to {MOST_PIECE}", text.len());
                return Err(broken(what));
            }
            if !score.is_finite() {
                return Err(broken(format!("piece {id} has the score {score}; it must be finite")));
            }
            let unknown = || broken(format!("piece {id} has the type {number}; allowed are 1 to 6"));
            let role = PieceType::of(number).ok_or_else(unknown)?;
            Ok(Piece { text: text.to_owned(), score, role })
        };
        let pieces = pieces.iter().enumerate().map(piece).collect::<Result<Vec<Piece>>>()?;
        if !normalizer.charsmap.is_empty() {
            limits::check_charsmap(normalizer.charsmap).map_err(broken)?;
        }
        let bytes = pieces.iter().filter(|piece| piece.role == PieceType::Byte).count();
        let specs = Specs {
            byte_fallback: bytes == 256,
            charsmap: normalizer.charsmap.to_vec(),
            dummy_prefix: normalizer.dummy_prefix,
            remove_extra_whitespaces: normalizer.remove_extra_whitespaces,
            ..Specs::usual()
        };
        specs.finish(file, pieces)
    }

    /// An error of this file.
    pub fn broken(&self, what: impl Into<String>) -> Error {
        Error::format(&self.file, what)
    }
}

fn piece(mut fields: Fields<'_>, id: usize) -> Result<Piece> {
    let mut piece = Piece { text: String::new(), score: 0.0, role: PieceType::Normal };
    while let Some(field) = fields.next()? {
        match field.number {
            1 => {
                let bytes = fields.bytes("piece", &field)?;
                if bytes.len() > MOST_PIECE {
                    let what =
                        format!("piece {id} has {} bytes; at most {MOST_PIECE} are allowed", bytes.len());
                    return Err(fields.broken(what));
                }
                piece.text = std::str::from_utf8(bytes)
                    .map_err(|_| fields.broken(format!("piece {id} is not UTF-8")))?
                    .to_owned();
            }
            2 => {
                piece.score = fields.float("score", &field)?;
                if !piece.score.is_finite() {
                    let what = format!("piece {id} has the score {}; it must be finite", piece.score);
                    return Err(fields.broken(what));
                }
            }
            3 => {
                let number = fields.varint("type", &field)?;
                piece.role = PieceType::of(number).ok_or_else(|| {
                    fields.broken(format!("piece {id} has the type {number}; allowed are 1 to 6"))
                })?;
            }
            _ => {}
        }
    }
    match piece.text.is_empty() {
        true => Err(fields.broken(format!("piece {id} is empty"))),
        false => Ok(piece),
    }
}

impl Specs {
    /// The format's defaults.
    fn usual() -> Self {
        Specs {
            model_type: 1,
            byte_fallback: false,
            whitespace_as_suffix: false,
            bos: 1,
            eos: 2,
            charsmap: Vec::new(),
            dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }

    fn trainer(&mut self, mut fields: Fields<'_>) -> Result<()> {
        while let Some(field) = fields.next()? {
            match field.number {
                3 => self.model_type = fields.varint("model_type", &field)?,
                24 => self.whitespace_as_suffix = fields.flag("treat_whitespace_as_suffix", &field)?,
                35 => self.byte_fallback = fields.flag("byte_fallback", &field)?,
                41 => self.bos = fields.signed("bos_id", &field)?,
                42 => self.eos = fields.signed("eos_id", &field)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, mut fields: Fields<'_>) -> Result<()> {
        while let Some(field) = fields.next()? {
            match field.number {
                2 => {
                    let map = fields.bytes("precompiled_charsmap", &field)?;
                    limits::check_charsmap(map).map_err(|what| fields.broken(what))?;
                    self.charsmap = map.to_vec();
                }
                3 => self.dummy_prefix = fields.flag("add_dummy_prefix", &field)?,
                4 => self.remove_extra_whitespaces = fields.flag("remove_extra_whitespaces", &field)?,
                5 => self.escape_whitespaces = fields.flag("escape_whitespaces", &field)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The model, if all of it is of a kind that can be used.
    fn finish(self, file: &str, pieces: Vec<Piece>) -> Result<Model> {
        let broken = |what: String| Error::format(file, what);
        let algorithm = match self.model_type {
            1 => Algorithm::Unigram,
            2 => Algorithm::Bpe,
            other => {
                return Err(broken(format!(
                    "model_type is {other}; read are 1 (unigram) and 2 (BPE), not words (3) or characters (4)"
                )));
            }
        };
        if self.whitespace_as_suffix {
            return Err(broken("treat_whitespace_as_suffix is true; only false is supported".into()));
        }
        if !self.escape_whitespaces {
            return Err(broken("escape_whitespaces is false; only true is supported".into()));
        }
        let mut seen = HashSet::with_capacity(pieces.len());
        if let Some(id) = pieces.iter().position(|piece| !seen.insert(piece.text.as_str())) {
            return Err(broken(format!("piece {id}, `{}`, stands twice", pieces[id].text)));
        }
        let mut unknown = (0..pieces.len()).filter(|&id| pieces[id].role == PieceType::Unknown);
        let (Some(unknown), None) = (unknown.next(), unknown.next()) else {
            return Err(broken("not exactly one of the pieces is of the type unknown (2)".into()));
        };
        // An id of -1 says that there is no such piece; so does one that is no piece's, in published files.
        let known = |id: i64| usize::try_from(id).ok().filter(|&id| id < pieces.len());
        let (bos, eos) = (known(self.bos), known(self.eos));
        Ok(Model {
            file: file.to_owned(),
            pieces,
            algorithm,
            byte_fallback: self.byte_fallback,
            unknown,
            bos,
            eos,
            charsmap: self.charsmap,
            dummy_prefix: self.dummy_prefix,
            remove_extra_whitespaces: self.remove_extra_whitespaces,
        })
    }
}

/// The fields of one message.
struct Fields<'a> {
    file: &'a str,
    part: &'static str,
    bytes: &'a [u8],
    /// Where the message begins in the file.
    base: usize,
    at: usize,
}

struct Field<'a> {
    number: u64,
    /// Where its value begins in the message.
    at: usize,
    value: FieldValue<'a>,
}

enum FieldValue<'a> {
    Varint(u64),
    Fixed64,
    Bytes(&'a [u8]),
    Fixed32(u32),
}

impl<'a> Fields<'a> {
    fn broken(&self, what: impl std::fmt::Display) -> Error {
        Error::format(self.file, format!("{} near byte {}: {what}", self.part, self.base + self.at))
    }

    fn next(&mut self) -> Result<Option<Field<'a>>> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let tag = self.number()?;
        let (number, wire) = (tag >> 3, tag & 7);
        if number == 0 {
            return Err(self.broken("a field of number 0; numbers begin with 1"));
        }
        let at = self.at;
        let value = match wire {
            0 => FieldValue::Varint(self.number()?),
            1 => self.take(8).map(|_| FieldValue::Fixed64)?,
            2 => {
                let length = self.number()?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => {
                let bytes = self.take(4)?;
                FieldValue::Fixed32(bytes.try_into().map_or(0, u32::from_le_bytes))
            }
            other => {
                return Err(
                    self.broken(format!("field {number} has wire type {other}; allowed are 0, 1, 2, 5"))
                );
            }
        };
        Ok(Some(Field { number, at, value }))
    }

    /// A number of up to ten bytes, seven bits each.
    fn number(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let Some(&byte) = self.bytes.get(self.at) else {
                return Err(self.broken("the bytes end within a number"));
            };
            self.at += 1;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.broken("a number of more than 10 bytes"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let left = &self.bytes[self.at..];
        let taken = usize::try_from(length).ok().and_then(|length| left.get(..length));
        let Some(taken) = taken else {
            return Err(self.broken(format!("{length} bytes are announced; {} are left", left.len())));
        };
        self.at += taken.len();
        Ok(taken)
    }

    /// The fields of a message within this one.
    fn inner(&self, part: &'static str, field: &Field<'a>) -> Result<Fields<'a>> {
        let bytes = self.bytes(part, field)?;
        Ok(Fields { file: self.file, part, bytes, base: self.base + field.at, at: 0 })
    }

    fn bytes(&self, name: &str, field: &Field<'a>) -> Result<&'a [u8]> {
        match field.value {
            FieldValue::Bytes(bytes) => Ok(bytes),
            _ => Err(self.mismatch(name, field, 2)),
        }
    }

    fn varint(&self, name: &str, field: &Field<'a>) -> Result<u64> {
        match field.value {
            FieldValue::Varint(value) => Ok(value),
            _ => Err(self.mismatch(name, field, 0)),
        }
    }

    fn signed(&self, name: &str, field: &Field<'a>) -> Result<i64> {
        self.varint(name, field).map(|value| value as i64)
    }

    fn flag(&self, name: &str, field: &Field<'a>) -> Result<bool> {
        self.varint(name, field).map(|value| value != 0)
    }

    fn float(&self, name: &str, field: &Field<'a>) -> Result<f32> {
        match field.value {
            FieldValue::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(self.mismatch(name, field, 5)),
        }
    }

    fn mismatch(&self, name: &str, field: &Field<'a>, wanted: u8) -> Error {
        let found = match field.value {
            FieldValue::Varint(_) => 0,
            FieldValue::Fixed64 => 1,
            FieldValue::Bytes(_) => 2,
            FieldValue::Fixed32(_) => 5,
        };
        self.broken(format!("field {} (`{name}`) has wire type {found}; it must be {wanted}", field.number))
    }
}
