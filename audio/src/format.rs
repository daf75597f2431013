//! Segments as text, JSON, SRT and WebVTT.

use crate::Segment;
use std::fmt::Write;

/// How segments are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The text alone, a line per segment.
    #[default]
    Text,
    /// `{"language": .., "duration": .., "text": .., "segments": [{"start": .., "end": .., "text": ..}]}`.
    Json,
    /// SubRip.
    Srt,
    /// WebVTT.
    Vtt,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Ok(match name {
            "text" => Self::Text,
            "json" => Self::Json,
            "srt" => Self::Srt,
            "vtt" => Self::Vtt,
            other => return Err(format!("\"{other}\" is no format; allowed: text, json, srt, vtt")),
        })
    }
}

/// `01:02:03,456`.
fn time(seconds: f64, point: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}{point}{:03}", ms % 1000)
}

/// A text in which no line is empty and no arrow stands: both end a cue.
fn in_a_cue(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n").replace("-->", "->")
}

impl Format {
    /// What stands in front of the first segment.
    pub fn head(self) -> &'static str {
        if self == Self::Vtt { "WEBVTT\n\n" } else { "" }
    }

    /// Segment `number`, from 0; nothing as JSON, which is one object ([`Format::whole`]).
    pub fn segment(self, number: usize, segment: &Segment) -> String {
        let (text, [start, end]) = (in_a_cue(&segment.text), [segment.start, segment.end]);
        match self {
            Self::Text => format!("{}\n", segment.text.trim()),
            Self::Json => String::new(),
            Self::Srt => format!("{}\n{} --> {}\n{text}\n\n", number + 1, time(start, ','), time(end, ',')),
            Self::Vtt => format!("{} --> {}\n{text}\n\n", time(start, '.'), time(end, '.')),
        }
    }

    /// All of it.
    pub fn whole(self, segments: &[Segment], language: Option<&str>, duration: f64) -> String {
        if self == Self::Json {
            let text: Vec<&str> = segments.iter().map(|segment| segment.text.trim()).collect();
            let all = serde_json::json!({
                "language": language,
                "duration": duration,
                "text": text.join(" "),
                "segments": segments,
            });
            return format!("{all:#}\n");
        }
        let mut text = self.head().to_string();
        for (number, segment) in segments.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}", self.segment(number, segment));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Segment> {
        let of = |start, end, text: &str| Segment { start, end, text: text.into() };
        vec![of(0.0, 3.4, " The ferry leaves."), of(3661.0, 3662.0056, " a --> b\n\n c")]
    }

    #[test]
    fn every_format() {
        let written = |format: Format| format.whole(&all(), Some("en"), 3700.5);
        assert_eq!(written(Format::Text), "The ferry leaves.\na --> b\n\n c\n");
        assert_eq!(
            written(Format::Srt),
            "1\n00:00:00,000 --> 00:00:03,400\nThe ferry leaves.\n\n2\n01:01:01,000 --> 01:01:02,006\na -> b\nc\n\n"
        );
        assert_eq!(
            written(Format::Vtt),
            "WEBVTT\n\n00:00:00.000 --> 00:00:03.400\nThe ferry leaves.\n\n01:01:01.000 --> 01:01:02.006\na -> b\nc\n\n"
        );
        let json: serde_json::Value = serde_json::from_str(&written(Format::Json)).unwrap_or_default();
        assert_eq!((&json["language"], &json["segments"][1]["start"]), (&"en".into(), &3661.0.into()));
        assert_eq!(json["text"], "The ferry leaves. a --> b\n\n c");
        assert!("mp3".parse::<Format>().is_err_and(|e| e.contains("srt")));
    }
}
