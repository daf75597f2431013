//! The facade: streams, cancellation, sharing between threads, encoders' refusals.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft::engraft_core::checkpoint::TokenizerFiles;
use engraft::engraft_core::engine::{Layers, Want};
use engraft::{
    AsyncTextStream, AsyncTokens, EmbedOptions, EncoderInput, EngineHandle, Error, Event, Finish,
    ForwardWant, GenerateOptions, Generator, Message, ModelSource, Options, Pick, Pooling, Request,
    SamplingParams, TextFinish, TextGenerator, TextStream,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn request(prompt: &[u32], new_tokens: usize) -> Request {
    Request { prompt: prompt.to_vec(), max_new_tokens: new_tokens, ..Request::default() }
}

fn sampled_by(handle: &EngineHandle, prompt: &[u32], new_tokens: usize) -> Vec<u32> {
    let events: Vec<Event> =
        handle.submit(request(prompt, new_tokens)).unwrap().collect::<Result<_, _>>().unwrap();
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
    sends::<AsyncTextStream>();
    sends::<AsyncTokens>();
    let boxed: Box<dyn Generator> = Box::new(engraft::demo().unwrap());
    assert_eq!(boxed.info().arch, "llama");
}

#[test]
fn requests_of_several_threads_do_not_disturb_each_other() {
    let model = engraft::demo().unwrap();
    let handle = model.handle();
    let prompts: Vec<Vec<u32>> = (1..7u32).map(|i| (0..i * 9).map(|t| t * 31 % 2048).collect()).collect();
    let alone: Vec<Vec<u32>> = prompts.iter().map(|p| sampled_by(handle, p, 12)).collect();
    let together: Vec<Vec<u32>> = thread::scope(|scope| {
        let threads: Vec<_> = prompts
            .iter()
            .map(|p| {
                let handle = handle.clone();
                scope.spawn(move || sampled_by(&handle, p, 12))
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
        let mut stream = handle.submit(request(&[1, 2, 3], 250)).unwrap();
        assert!(matches!(stream.next(), Some(Ok(Event::Token(_)))));
        drop(stream);
    }
    assert_eq!(sampled_by(&handle, &[1, 2, 3], 4).len(), 4);
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
fn what_is_wrong_with_a_verb_is_said_by_name() {
    let handle = Options::new().start(ModelSource::Demo).unwrap();
    let mut ended = handle.submit(request(&[5], 1)).unwrap();
    while ended.next().is_some() {}
    let said = ended.save().unwrap_err();
    assert!(matches!(&said, Error::Request { what, .. } if what.contains("ended")), "{said}");
    assert!(ended.preempt().is_err());
    let events: Vec<_> = ended.fork(SamplingParams::default(), 0).unwrap().collect();
    assert!(matches!(&events[..], [Err(Error::Request { .. })]), "{events:?}");
    let hot = SamplingParams { temperature: -1.0, ..SamplingParams::default() };
    assert!(matches!(ended.fork(hot, 0).map(|_| ()), Err(Error::Config { .. })));

    for bytes in [vec![], b"engraft\x02".to_vec(), vec![7; 4096]] {
        let events: Vec<_> = handle.restore(bytes).unwrap().collect();
        assert!(matches!(&events[..], [Err(Error::Format { .. })]), "{events:?}");
    }
    // Nothing of that has touched what it serves.
    assert_eq!(sampled_by(&handle, &[5, 6], 4).len(), 4);
}

#[test]
fn wrong_requests_are_reported_and_others_go_on() {
    let model = engraft::demo().unwrap();
    let handle = model.handle();
    let mut good = handle.submit(request(&[5, 6], 20)).unwrap();
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
        let text = handle.submit(bad).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(good.by_ref().filter(|e| matches!(e, Ok(Event::Token(_)))).count(), 20);
    let text = EncoderInput { ids: vec![1], token_type_ids: Vec::new(), ..EncoderInput::default() };
    assert!(matches!(handle.encode(vec![text], Layers::Last), Err(Error::Architecture { .. })));
    let options = GenerateOptions::new();
    assert!(matches!(model.chat(&[Message::new("user", "hi")], &options), Err(Error::Text { .. })));
    assert!(matches!(model.generate("a", &options.stop("")), Err(Error::Config { .. })));
}

/// A conversation reads what is new of every turn: what was said before is in the cache.
#[test]
fn a_turn_reads_what_is_new_alone() {
    let model = engraft::demo().unwrap();
    let options = GenerateOptions::new().max_new_tokens(24).seed(3);
    let mut text =
        String::from("This package provides a library that reads and writes files of many formats");
    let mut before = 0;
    for turn in 0..4 {
        let mut stream = model.generate(&text, &options).unwrap();
        let answer: String = stream.by_ref().collect::<Result<_, _>>().unwrap();
        let (stats, prompt) = (model.handle().stats(), stream.stats().prompt_tokens);
        let read = prompt as u64 - (stats.prefix_hit - before);
        // At most the tokens that were added, and the rest of a page.
        let new = if turn == 0 { prompt } else { 12 + 2 * stats.page_size };
        assert!(read <= new as u64, "turn {turn}: {read} of {prompt} tokens were read");
        before = stats.prefix_hit;
        text = format!("{text}{answer} and it");
    }
    assert!(before > 0);
}

/// A chat template writes all turns anew before every answer: what it wrote before is found, up to the rest
/// of a page and what it writes at the end of a prompt.
#[test]
fn a_turn_of_a_chat_reads_what_is_new_alone() {
    const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}\
                            {% if add_generation_prompt %}<assistant>{% endif %}";
    let mut files = engraft::demo_files().unwrap();
    let TokenizerFiles::HuggingFace { chat_template, .. } = &mut files.tokenizer else {
        panic!("no tokenizer")
    };
    *chat_template = Some(TEMPLATE.into());
    let model = Options::new().open(files).unwrap();
    let options = GenerateOptions::new().max_new_tokens(24).seed(3);
    let question = "Which library reads and writes files of many formats, and which one draws them?";
    let (mut talk, mut hits, mut known) = (Vec::new(), 0, 0);
    for turn in 0..4 {
        talk.push(Message::new("user", question));
        let mut stream = model.chat(&talk, &options).unwrap();
        let answer: String = stream.by_ref().collect::<Result<_, _>>().unwrap();
        let (stats, prompt) = (model.handle().stats(), stream.stats().prompt_tokens as u64);
        let (read, new) = (prompt - (stats.prefix_hit - hits), prompt - known);
        let most = new + 2 * stats.page_size as u64;
        assert!(read <= most, "turn {turn}: {read} of {prompt} tokens were read, {new} are new");
        (hits, known) = (stats.prefix_hit, prompt);
        talk.push(Message::new("assistant", &answer));
    }
    assert!(2 * hits > known, "{hits} tokens were found, the last prompt has {known}");
}

/// What is too long names its limit, and whose it is.
#[test]
fn limits_of_the_context_say_whose_they_are() {
    let long = "a text of several words ".repeat(400);
    let open = |tokens| Options::new().max_context(tokens).open(engraft::ModelSource::Demo).unwrap();
    let refused = |model: &engraft::TextGenerator, options: &GenerateOptions| {
        let error = model.generate(&long, options).map(drop).unwrap_err();
        assert!(matches!(error, Error::TextTooLong { .. }), "{error}");
        error.to_string()
    };
    let (own, shielded) = (GenerateOptions::new(), GenerateOptions::new().no_special_in_user_text());
    let (small, whole) = (open(64), open(1 << 20));
    let model = whole.info().max_context;
    let setting = format!("allowed: 64, the engine's `max_context` (the model has {model})");
    for options in [own, shielded] {
        assert!(refused(&small, &options).ends_with(&setting), "{}", refused(&small, &options));
        assert!(refused(&whole, &options).ends_with(&format!("allowed: {model}, the model's own limit")));
    }
    let error = small.handle().submit(request(&[1; 65], 1)).map(drop).unwrap_err().to_string();
    assert!(error.contains("65 tokens; the context holds 64, the engine's `max_context`"), "{error}");
}

/// A request that the cache could never hold is refused at once, as every other one that cannot run.
#[test]
fn a_request_beyond_the_cache_is_refused_before_it_is_queued() {
    let config =
        engraft::EngineConfig { max_seqs: 1, max_context: 256, kv_pages: Some(4), ..Default::default() };
    let handle = Options::new().engine(config).start(engraft::ModelSource::Demo).unwrap();
    let error = handle.submit(request(&[1; 60], 100)).map(drop).unwrap_err();
    assert!(matches!(error, Error::KvFull { wanted: 10, total: 4, .. }), "{error}");
    assert_eq!(sampled_by(&handle, &[1; 60], 4).len(), 4);
    let bert = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/bert");
    let handle = Options::new().start(bert).unwrap();
    assert!(matches!(handle.submit(request(&[1], 1)), Err(Error::Architecture { .. })));
}

/// The text of a stream is that of the iterator; tasks of one thread are served side by side, each woken by
/// its own tokens.
#[test]
fn async_streams_give_the_same_text_and_cancel_when_dropped() {
    use futures::StreamExt;
    let model = Options::new().max_seqs(2).open(engraft::ModelSource::Demo).unwrap();
    let options = GenerateOptions::new().greedy().max_new_tokens(40);
    let prompts = ["This package provides", "python3-requests: ", "A library for"];
    let stream = |prompt: &str| model.generate(prompt, &options).unwrap().into_stream();
    let want = prompts.map(|prompt| model.generate(prompt, &options).unwrap().text().unwrap());
    let got = futures::executor::block_on(futures::future::join_all(
        prompts.map(|prompt| stream(prompt).map(|piece| piece.unwrap()).collect::<String>()),
    ));
    assert_eq!(got, want);
    // More streams than places: one that is dropped gives its place back, begun or not.
    futures::executor::block_on(async {
        for _ in 0..4 {
            let (mut begun, _waiting) = (stream(prompts[0]), stream(prompts[1]));
            assert!(begun.next().await.unwrap().is_ok());
        }
        let mut whole = stream(prompts[2]);
        let mut text = String::new();
        while let Some(piece) = whole.next().await {
            text.push_str(&piece.unwrap());
        }
        assert_eq!(text, want[2]);
        assert!(whole.stats().finish.is_some() && whole.next().await.is_none());
    });
}

/// Without a seed two texts differ; what a text was sampled by gives it again.
#[test]
fn a_seed_is_new_unless_it_is_given() {
    let model = engraft::demo().unwrap();
    let options = GenerateOptions::new().temperature(1.5).max_new_tokens(30);
    let texts: Vec<(String, u64)> = (0..3)
        .map(|_| {
            let mut stream = model.generate("This package", &options).unwrap();
            (stream.text().unwrap(), stream.sampling().seed.unwrap())
        })
        .collect();
    assert!(texts.iter().any(|(text, _)| *text != texts[0].0), "{texts:?}");
    for (text, seed) in texts {
        assert_eq!(
            model.generate("This package", &options.clone().seed(seed)).unwrap().text().unwrap(),
            text
        );
    }
    let wrong = model.generate("a", &GenerateOptions::new().top_p(0.0)).map(drop).unwrap_err();
    assert!(wrong.to_string().contains("top_p"), "{wrong}");
    // The same holds one level below.
    let sampling = engraft::SamplingParams { temperature: 1.5, ..Default::default() };
    let request = engraft::Request { prompt: vec![1, 2], max_new_tokens: 30, sampling, ..Default::default() };
    let tokens = |request: &engraft::Request| -> Vec<Event> {
        model.handle().submit(request.clone()).unwrap().map(Result::unwrap).collect()
    };
    assert!((0..3).any(|_| tokens(&request) != tokens(&request)), "every request had the same seed");
    let given =
        engraft::Request { sampling: engraft::SamplingParams { seed: Some(3), ..sampling }, ..request };
    assert_eq!(tokens(&given), tokens(&given));
}

/// Heads that answer for every token of a text do so without being asked for.
#[test]
fn impossible_sizes_are_refused_before_a_weight_is_read() {
    let read = Arc::new(AtomicBool::new(false));
    let seen = read.clone();
    let options = Options::new().max_seqs(0).progress(move |_, _| seen.store(true, Ordering::Relaxed));
    let text = options.start(engraft::ModelSource::Demo).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("`max_seqs` is 0"), "{text}");
    assert!(!read.load(Ordering::Relaxed));
}

#[test]
fn encoders_with_a_head_for_tokens_give_their_logits() {
    for case in ["bert", "electra"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(case);
        let handle = Options::new().start(folder).unwrap();
        let text = EncoderInput { ids: vec![1, 2, 3], token_type_ids: Vec::new(), ..EncoderInput::default() };
        let cols = if case == "bert" { handle.info().vocab } else { 1 };
        let encoded = handle.encode(vec![text], Layers::Last).unwrap();
        assert_eq!(encoded[0].logits.len(), 3 * cols, "{case}");
    }
}

#[test]
fn a_prompt_alone_is_run_without_sampling() {
    let model = engraft::demo().unwrap();
    let events: Vec<Event> =
        model.handle().submit(request(&[1, 2, 3], 0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(events, [Event::Finished(Finish::Length)]);
}

#[test]
fn kept_logits_come_before_the_end() {
    let config = engraft::EngineConfig { logit_rows: Some(usize::MAX), max_seqs: 1, ..Default::default() };
    let handle = Options::new().engine(config).start(engraft::ModelSource::Demo).unwrap();
    let want = Want { logits: true, hidden: Layers::All, ..Want::default() };
    let events: Vec<Event> =
        handle.submit(Request { want, ..request(&[1, 2, 3], 2) }).unwrap().collect::<Result<_, _>>().unwrap();
    let Event::Kept(kept) = &events[events.len() - 2] else { panic!("{events:?}") };
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

fn with_rows() -> EngineHandle {
    Options::new().logit_rows(usize::MAX).start(engraft::ModelSource::Demo).unwrap()
}

#[test]
fn forward_gives_the_states_and_logits_that_are_asked_for() {
    let handle = with_rows();
    let prompts: [Vec<u32>; 2] = [vec![1, 2, 3], vec![4, 5, 6, 7, 8]];
    let want = ForwardWant { hidden: Pick::Some(vec![5, 0]), logits: Pick::Some(vec![0, 2]) };
    // Requests are running: what runs alone waits for them, and they are not disturbed.
    let mut before = handle.submit(request(&[9, 8, 7], 12)).unwrap();
    assert!(matches!(before.next(), Some(Ok(Event::Token(_)))));
    let all = handle.forward(prompts.clone(), want).unwrap();
    assert_eq!(before.filter(|e| matches!(e, Ok(Event::Token(_)))).count(), 11);
    for (prompt, got) in prompts.iter().zip(&all) {
        assert_eq!(got.hidden.len(), 2);
        assert!(got.hidden.iter().all(|rows| rows.len() == prompt.len() * 128));
        assert_eq!(got.logits.len(), 2 * 2048);
    }
    // The same as a request keeps for itself.
    let keep = Want { logits: true, hidden: Layers::All, ..Want::default() };
    let events: Vec<Event> = handle
        .submit(Request { want: keep, ..request(&prompts[0], 0) })
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let Event::Kept(kept) = &events[0] else { panic!("{events:?}") };
    assert_eq!(all[0].logits[..2048], kept.logits[..2048]);
    assert_eq!(all[0].logits[2048..], kept.logits[2 * 2048..]);
    assert_eq!([&all[0].hidden[0], &all[0].hidden[1]], [&kept.hidden[5], &kept.hidden[0]]);
    // The last alone is read back alone.
    let keep = Want { hidden: Layers::Last, ..Want::default() };
    let events: Vec<Event> = handle
        .submit(Request { want: keep, ..request(&prompts[0], 0) })
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let Event::Kept(last) = &events[0] else { panic!("{events:?}") };
    assert!(last.hidden.len() == 1 && last.hidden[0] == kept.hidden[5] && last.logits.is_empty());

    let beyond = ForwardWant { hidden: Pick::Some(vec![6]), logits: Pick::None };
    let text = handle.forward(prompts, beyond).unwrap_err().to_string();
    assert!(text.contains("layer 6"), "{text}");
    // In steps of few rows of logits: the same.
    let small = Options::new().logit_rows(1).max_seqs(2).start(engraft::ModelSource::Demo).unwrap();
    let logits = ForwardWant { hidden: Pick::None, logits: Pick::Some(vec![0, 2]) };
    let few = small.forward([vec![1, 2, 3], vec![4, 5, 6, 7, 8]], logits).unwrap();
    let logits = |all: &[engraft::Forwarded]| all.iter().map(|one| one.logits.clone()).collect::<Vec<_>>();
    assert_eq!(logits(&few), logits(&all));
}

#[test]
fn embeddings_are_pooled_states() {
    let model = engraft::demo().unwrap();
    let handle = model.handle();
    let prompts: [Vec<u32>; 2] = [vec![1, 2, 3], vec![4, 5, 6, 7, 8]];
    let last = ForwardWant { hidden: Pick::Last, logits: Pick::None };
    let states = handle.forward(prompts.clone(), last).unwrap();
    let of = |pooling, normalize| {
        let options = EmbedOptions::new().pooling(pooling).normalize(normalize);
        handle.embed(prompts.clone(), &options).unwrap()
    };
    let (firsts, lasts, means) =
        (of(Pooling::First, false), of(Pooling::Last, false), of(Pooling::Mean, false));
    for (i, one) in states.iter().enumerate() {
        let rows = &one.hidden[0];
        assert_eq!([&firsts[i][..], &lasts[i]], [&rows[..128], &rows[rows.len() - 128..]]);
        for (c, mean) in means[i].iter().enumerate() {
            let column: Vec<f32> = rows.iter().skip(c).step_by(128).copied().collect();
            let want = column.iter().sum::<f32>() / column.len() as f32;
            assert!((mean - want).abs() <= 1e-4 * want.abs().max(1.0), "{mean} for {want}");
        }
    }
    for row in of(Pooling::Mean, true) {
        let length: f32 = row.iter().map(|v| v * v).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    }
    assert!(matches!(
        handle.embed(prompts.clone(), &EmbedOptions::new().pooling(Pooling::Model)),
        Err(Error::Architecture { .. })
    ));
}

#[test]
fn scores_are_log_probabilities_of_what_follows() {
    let handle = with_rows();
    let sequences = vec![vec![5, 6, 7], vec![1, 2, 3, 4]];
    let scores = handle.score(sequences.clone()).unwrap();
    let want = ForwardWant { hidden: Pick::None, logits: Pick::All };
    let all = handle.forward(sequences.clone(), want).unwrap();
    for ((ids, scores), one) in sequences.iter().zip(&scores).zip(&all) {
        assert_eq!(scores.len(), ids.len() - 1);
        for (t, score) in scores.iter().enumerate() {
            let row = &one.logits[t * 2048..(t + 1) * 2048];
            let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            let want = f64::from(row[ids[t + 1] as usize]) - sum.ln();
            assert!((f64::from(*score) - want).abs() < 1e-4, "{score} for {want}");
        }
    }
    assert!(matches!(handle.score(vec![Vec::<u32>::new()]), Err(Error::Request { id: 0, .. })));
}

#[test]
fn images_are_encoded_by_models_that_read_them() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/clip_vision");
    let handle = Options::new().start(engraft::ModelSource::Path(folder)).unwrap();
    let image = |shift: usize| (0..3 * 24 * 24).map(|i| ((i + shift) % 7) as f32 / 7.0).collect::<Vec<f32>>();
    let both = handle.encode_images(vec![image(0), image(3)], Layers::All).unwrap();
    assert_eq!(both.len(), 2);
    for one in &both {
        // A row for the class token and one per square, of what enters and of two layers.
        assert!(one.hidden.len() == 3 && one.hidden.iter().all(|rows| rows.len() == 10 * 64));
        assert_eq!(one.pooled.len(), 24);
    }
    let alone = handle.encode_images(vec![image(3)], Layers::All).unwrap();
    assert_eq!(both[1], alone[0], "alone");
    let text = handle.encode_images(vec![vec![0.0; 5]], Layers::Last).unwrap_err().to_string();
    assert!(text.contains("5 values"), "{text}");
    let demo = engraft::demo().unwrap();
    assert!(matches!(
        demo.handle().encode_images(vec![image(0)], Layers::Last),
        Err(Error::Architecture { .. })
    ));
}
