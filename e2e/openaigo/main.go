// Command openaigo calls the gateway with the official OpenAI client for Go and prints what came back as one JSON object. It is
// a module of its own: the client takes longer to compile than all the rest.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

type answers struct {
	Whole      answer   `json:"whole"`
	Streamed   answer   `json:"streamed"` // that did not ask for usage
	Counted    answer   `json:"counted"`  // streamed, that did
	Embeddings []int    `json:"embeddings"`
	Models     []string `json:"models"`
	Missing    struct {
		Status int    `json:"status"`
		Code   string `json:"code"`
	} `json:"missing"`
}

type answer struct {
	Text       string `json:"text"`
	Completion int64  `json:"completion"` // tokens
	Total      int64  `json:"total"`
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: openaigo BASE_URL API_KEY MODEL")
		os.Exit(2)
	}
	got, err := ask(context.Background(), os.Args[1], os.Args[2], os.Args[3])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(got)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "openaigo:", err)
		os.Exit(1)
	}
}

func ask(ctx context.Context, url, key, model string) (got answers, err error) {
	client := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey(key), option.WithMaxRetries(0))
	chat := openai.ChatCompletionNewParams{
		Model: model, MaxTokens: openai.Int(6), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Count to five, please.")},
	}
	whole, err := client.Chat.Completions.New(ctx, chat)
	if err != nil {
		return got, err
	}
	got.Whole = answer{whole.Choices[0].Message.Content, whole.Usage.CompletionTokens, whole.Usage.TotalTokens}
	if got.Streamed, err = stream(ctx, &client, chat); err != nil {
		return got, err
	}
	chat.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	if got.Counted, err = stream(ctx, &client, chat); err != nil {
		return got, err
	}
	vectors, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}}})
	if err != nil {
		return got, err
	}
	for _, v := range vectors.Data {
		got.Embeddings = append(got.Embeddings, len(v.Embedding))
	}
	models, err := client.Models.List(ctx)
	if err != nil {
		return got, err
	}
	for _, m := range models.Data {
		got.Models = append(got.Models, m.ID)
	}
	chat.Model = "no-such-model"
	_, err = client.Chat.Completions.New(ctx, chat)
	var refused *openai.Error
	if !errors.As(err, &refused) {
		return got, fmt.Errorf("of a model that is not there: %w", err)
	}
	got.Missing.Status, got.Missing.Code = refused.StatusCode, refused.Code
	return got, nil
}

func stream(ctx context.Context, client *openai.Client, chat openai.ChatCompletionNewParams) (answer, error) {
	events := client.Chat.Completions.NewStreaming(ctx, chat)
	var all openai.ChatCompletionAccumulator
	for events.Next() {
		all.AddChunk(events.Current())
	}
	if err := events.Err(); err != nil {
		return answer{}, err
	}
	if len(all.Choices) != 1 {
		return answer{}, fmt.Errorf("the stream has %d choices", len(all.Choices))
	}
	return answer{all.Choices[0].Message.Content, all.Usage.CompletionTokens, all.Usage.TotalTokens}, nil
}
