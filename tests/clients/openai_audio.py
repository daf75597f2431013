"""OpenAI's own client with a model of speech: openai_audio.py ADDRESS RATE."""

import io
import random
import sys
import wave

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="unused", max_retries=0)
rate = int(sys.argv[2])
sound = io.BytesIO()
model = client.models.list().data[0].id
with wave.open(sound, "wb") as file:
    file.setparams((1, 2, rate, 0, "NONE", "none"))
    noise = random.Random(3)
    file.writeframes(b"".join(noise.randrange(-9000, 9000).to_bytes(2, "little", signed=True) for _ in range(3 * rate)))


def ask(**more):
    return client.audio.transcriptions.create(model=model, file=("talk.wav", sound.getvalue()), **more)


text = ask().text
assert text, "nothing was heard"
whole = ask(response_format="verbose_json", timestamp_granularities=["segment"])
assert whole.text == text and abs(whole.duration - 3) < 1e-6 and whole.language, whole
assert " ".join(segment.text.strip() for segment in whole.segments) == text, whole
for segment in whole.segments:
    assert segment.tokens and segment.avg_logprob < 0 and 0 <= segment.temperature <= 1 and segment.seek >= 0, segment
    assert 0 <= segment.no_speech_prob <= 1 and segment.compression_ratio > 0, segment
assert "-->" in ask(response_format="srt") and ask(response_format="vtt").startswith("WEBVTT")
events = list(ask(stream=True))
assert "".join(event.delta for event in events[:-1]) == text, events
assert events[-1].type == "transcript.text.done" and events[-1].text == text, events
assert client.audio.translations.create(model=model, file=("talk.wav", sound.getvalue())).text
try:
    ask(language="xx")
    raise SystemExit("a language that is not there was heard")
except openai.BadRequestError as error:
    assert "xx" in str(error), error
print("openai", openai.__version__, "ok: sound")
