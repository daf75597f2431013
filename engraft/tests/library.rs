//! The facade: streams, cancellation, sharing between threads, encoders' refusals.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft::{
    EncoderInput, EngineHandle, Error, Event, Finish, GenerateOptions, Generator, Message, Options, Request,
    TextFinish, TextGenerator, TextStream,
};
use std::thread;

fn request(prompt: &[u32], draw: usize) -> Request {
    Request { prompt: prompt.to_vec(), max_new_tokens: draw, ..Request::default() }
}

fn drawn(handle: &EngineHandle, prompt: &[u32], draw: usize) -> Vec<u32> {
    let events: Vec<Event> = handle.submit(request(prompt, draw)).collect::<Result<_, _>>().unwrap();
    assert_eq!(events.last(), Some(&Event::Finished(Finish::Length)));
    events.iter().filter_map(|e| if let Event::Token(t) = e { Some(*t) } else { None }).collect()
}

#[test]
fn what_users_hold_crosses_threads() {
    fn sends<T: Send + 'static>() {}
    fn shares<T: Sync>() {}
    sends::<EngineHandle>();
    sends::<TextGenerator>();
    shares::<TextGenerator>();
    sends::<TextStream>();
    let boxed: Box<dyn Generator> = Box::new(engraft::demo().unwrap());
    assert_eq!(boxed.info().arch, "llama");
}

#[test]
fn requests_of_several_threads_do_not_disturb_each_other() {
    let model = engraft::demo().unwrap();
    let handle = model.handle();
    let prompts: Vec<Vec<u32>> = (1..7u32).map(|i| (0..i * 9).map(|t| t * 31 % 2048).collect()).collect();
    let alone: Vec<Vec<u32>> = prompts.iter().map(|p| drawn(handle, p, 12)).collect();
    let together: Vec<Vec<u32>> = thread::scope(|scope| {
        let threads: Vec<_> = prompts
            .iter()
            .map(|p| {
                let handle = handle.clone();
                scope.spawn(move || drawn(&handle, p, 12))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn a_dropped_stream_gives_its_place_back() {
    // One place, each request wants most of the context: a leak would make the next one wait for ever.
    let handle = Options::new().max_seqs(1).max_context(256).start(engraft::ModelSource::Demo).unwrap();
    for _ in 0..5 {
        let mut stream = handle.submit(request(&[1, 2, 3], 250));
        assert!(matches!(stream.next(), Some(Ok(Event::Token(_)))));
        drop(stream);
    }
    assert_eq!(drawn(&handle, &[1, 2, 3], 4).len(), 4);
}

#[test]
fn a_stream_outlives_its_generator() {
    let model = engraft::demo().unwrap();
    let options = GenerateOptions::new().greedy();
    let mut stream = model.generate("This package provides", &options).unwrap();
    drop(model);
    assert!(stream.text().unwrap().contains("D-Bus"));
    assert_eq!(stream.stats().finish, Some(TextFinish::EndOfText));
    assert!(stream.next().is_none());
}

#[test]
fn wrong_requests_are_told_and_others_go_on() {
    let model = engraft::demo().unwrap();
    let handle = model.handle();
    let mut good = handle.submit(request(&[5, 6], 20));
    for (bad, word) in [
        (request(&[], 1), "empty"),
        (request(&[9999], 1), "9999"),
        (request(&[1; 600], 1), "600"),
        (
            Request {
                sampling: engraft::SamplingParams { top_p: 2.0, ..Default::default() },
                ..request(&[1], 1)
            },
            "top_p",
        ),
    ] {
        let mut stream = handle.submit(bad);
        let text = stream.next().unwrap().unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
        assert!(stream.next().is_none());
    }
    assert_eq!(good.by_ref().filter(|e| matches!(e, Ok(Event::Token(_)))).count(), 20);
    let text = EncoderInput { ids: vec![1], kinds: Vec::new() };
    assert!(matches!(handle.encode(vec![text], false), Err(Error::Unsupported { .. })));
    let options = GenerateOptions::new();
    assert!(matches!(model.chat(&[Message::new("user", "hi")], &options), Err(Error::Text { .. })));
    assert!(matches!(model.generate("a", &options.stop("")), Err(Error::Config { .. })));
}

/// Heads that answer for every token of a text do so without being asked for.
#[test]
fn encoders_with_a_head_for_tokens_give_their_logits() {
    for case in ["bert", "electra"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(case);
        let handle = Options::new().start(folder).unwrap();
        let text = EncoderInput { ids: vec![1, 2, 3], kinds: Vec::new() };
        let cols = if case == "bert" { handle.info().vocab } else { 1 };
        let encoded = handle.encode(vec![text], false).unwrap();
        assert_eq!(encoded[0].logits.len(), 3 * cols, "{case}");
    }
}

#[test]
fn a_prompt_alone_is_run_without_drawing() {
    let model = engraft::demo().unwrap();
    let events: Vec<Event> = model.handle().submit(request(&[1, 2, 3], 0)).collect::<Result<_, _>>().unwrap();
    assert_eq!(events, [Event::Finished(Finish::Length)]);
}

#[test]
fn captured_logits_come_before_the_end() {
    let config = engraft::EngineConfig { all_logits: true, max_seqs: 1, ..Default::default() };
    let handle = Options::new().engine(config).start(engraft::ModelSource::Demo).unwrap();
    let want = engraft::core::engine::Want { logits: true, hidden: true };
    let events: Vec<Event> =
        handle.submit(Request { want, ..request(&[1, 2, 3], 2) }).collect::<Result<_, _>>().unwrap();
    let Event::Captured(kept) = &events[events.len() - 2] else { panic!("{events:?}") };
    assert_eq!(kept.logits.len(), (3 + 1) * 2048);
    assert_eq!(kept.hidden.len(), 6);
}

#[test]
fn pieces_put_together_are_the_text() {
    let model = engraft::demo().unwrap();
    let options = GenerateOptions::new().greedy().max_new_tokens(60);
    let pieces: Vec<String> =
        model.generate("python3-requests: ", &options).unwrap().collect::<Result<_, _>>().unwrap();
    assert!(pieces.len() > 10 && pieces.iter().all(|p| !p.is_empty()));
    let whole = model.generate("python3-requests: ", &options).unwrap().text().unwrap();
    assert_eq!(pieces.concat(), whole);
}
