"""LangChain's client, plain chat: langchain_client.py ADDRESS."""

import sys

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

address = sys.argv[1] + "/v1"
chat = ChatOpenAI(base_url=address, api_key="unused", model="demo", temperature=0.5, seed=3, max_tokens=12, max_retries=0)
text = chat.invoke("This package provides").content
assert text
assert "".join(chunk.content for chunk in chat.stream("This package provides")) == text
assert len(chat.batch(["A library for", "The GNU"])) == 2
embeddings = OpenAIEmbeddings(base_url=address, api_key="unused", model="demo", check_embedding_ctx_length=False)
assert len(embeddings.embed_documents(["a library", "a program"])) == 2
print("langchain-openai ok")
