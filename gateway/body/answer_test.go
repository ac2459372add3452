package body

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func feed(model, text string, size int) (string, *Answer) {
	a := &Answer{Model: model}
	var out []byte
	for rest := text; rest != ""; {
		n := min(size, len(rest))
		out = a.Feed(out, []byte(rest[:n]))
		rest = rest[n:]
	}
	return string(a.Rest(out)), a
}

// TestAnswer_UsageOfEveryProtocol: P08.
func TestAnswer_UsageOfEveryProtocol(t *testing.T) {
	t.Parallel()
	n := func(v int64) *int64 { return &v }
	for text, want := range map[string]Answer{
		`{"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":99}"}}],"usage":{"prompt_tokens":1000,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":900}}}`: {
			Usage: Usage{n(1000), n(900), n(3)}, HasUsage: true,
		},
		`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":null}}`: {Usage: Usage{n(7), nil, n(3)}, HasUsage: true, UsageOnly: true},
		`{"usage":{"prompt_tokens":7,"completion_tokens":3},"choices":[ ]}`:                             {Usage: Usage{n(7), nil, n(3)}, HasUsage: true, UsageOnly: true},
		`{"choices":[{}],"usage":null}`: {},
		`{"type":"response.completed","response":{"model":"q","error":null,"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":2},"output_tokens":6,"total_tokens":11}}}`: {
			Usage: Usage{n(5), n(2), n(6)}, HasUsage: true, Type: "response.completed",
		},
		`{"type":"response.failed","response":{"error":{"code":"x"}}}`: {Failed: true, Type: "response.failed"},
		`{"type":"message_start","message":{"type":"message","usage":{"input_tokens":10,"cache_read_input_tokens":90,"cache_creation_input_tokens":5,"output_tokens":1}}}`: {
			Usage: Usage{n(105), n(90), n(1)}, HasUsage: true, Type: "message_start",
		},
		`{"type":"message_delta","delta":{},"usage":{"output_tokens":15}}`:                {Usage: Usage{nil, nil, n(15)}, HasUsage: true, Type: "message_delta"},
		`{"object":"list","data":[{"embedding":[0.1,-2e3]}],"usage":{"total_tokens":12}}`: {Usage: Usage{n(12), nil, nil}, HasUsage: true},
		`{"text":"hi","usage":{"type":"duration","seconds":3}}`:                           {HasUsage: true},
		`{"error":{"message":"boom","code":500}}`:                                         {Failed: true},
		`{"error":null}`:                                            {},
		`{"usage":{"prompt_tokens":-1}}`:                            {HasUsage: true},
		`{"choices":[{"a":1}],"usage":{"pro`:                        {},
		`no JSON`:                                                   {},
		`[{"usage":{"prompt_tokens":1}}]`:                           {},
		`{"a":{"usage":{"prompt_tokens":1}}}`:                       {},
		`{"usage":{"prompt_cache_hit_tokens":4,"prompt_tokens":6}}`: {Usage: Usage{n(6), n(4), nil}, HasUsage: true},
	} {
		for _, size := range []int{1, 3, len(text)} {
			_, a := feed("", text, size)
			got := Answer{Usage: a.Usage, HasUsage: a.HasUsage, UsageOnly: a.UsageOnly, Failed: a.Failed, Type: a.Type}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(Answer{})); diff != "" {
				t.Errorf("%s in pieces of %d (-want +got)\n%s", text, size, diff)
			}
		}
	}
}

// TestAnswer_NameThatWasAsked: P73, and everything else stays byte by byte.
func TestAnswer_NameThatWasAsked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"id":"x", "model" : "real","choices":[{"model":"real","text":"\"model\":\"real\""}]}`: `{"id":"x", "model" : "asked","choices":[{"model":"real","text":"\"model\":\"real\""}]}`,
		`{"model":"asked"}`:                       `{"model":"asked"}`,
		`{"model":null}`:                          `{"model":null}`,
		`{"response":{"id":1,"model":"r\"\\"}}`:   `{"response":{"id":1,"model":"asked"}}`,
		`{"message":{"model":"real"},"a":"\\"}`:   `{"message":{"model":"asked"},"a":"\\"}`,
		`{"other":{"model":"real"}}`:              `{"other":{"model":"real"}}`,
		`{"data":[1,2,[3]],"n":5,"model":"real"}`: `{"data":[1,2,[3]],"n":5,"model":"asked"}`,
		`{"model":"cut sh`:                        `{"model":"cut sh`,
		`{"a":1}{"model":"real"}`:                 `{"a":1}{"model":"real"}`,
		`text`:                                    `text`,
	} {
		for _, size := range []int{1, 2, 5, len(text)} {
			if got, _ := feed("asked", text, size); got != want {
				t.Errorf("%s in pieces of %d became %s", text, size, got)
			}
		}
	}
}

func TestAnswer_HoldsBackLittle(t *testing.T) {
	t.Parallel()
	a := Answer{Model: "asked"}
	out := a.Feed(nil, []byte(`{"usage":{"x":"`))
	for range 100 {
		out = a.Feed(out, []byte(strings.Repeat("y", 4096)))
	}
	if held := 100*4096 - len(out); held > 2*maxField {
		t.Errorf("%d bytes are held back", held)
	}
}

// FuzzAnswer: an answer in any pieces is passed on as one in a single piece is, and only the name differs.
func FuzzAnswer(f *testing.F) {
	f.Add(`{"id":"x","model":"real","choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}`, 3)
	f.Add(`{"type":"message_start","message":{"model":"r","usage":{"input_tokens":1}}}`, 1)
	f.Add(`{"error":{"message":"\"}"},"choices":[]}`, 7)
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size < 1 || len(text) > 4096 {
			return
		}
		same, silent := feed("", text, size)
		if same != text {
			t.Fatalf("%q became %q", text, same)
		}
		cut, a := feed("asked", text, size)
		whole, b := feed("asked", text, len(text)+1)
		if cut != whole || a.Type != b.Type || a.Failed != b.Failed || a.UsageOnly != b.UsageOnly || silent.HasUsage != b.HasUsage {
			t.Fatalf("%q in pieces of %d: %q and %q", text, size, cut, whole)
		}
		var before, after map[string]any
		if json.Unmarshal([]byte(text), &before) != nil {
			return
		}
		if err := json.Unmarshal([]byte(cut), &after); err != nil {
			t.Fatalf("%q became %q: %v", text, cut, err)
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	event := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"sim-7b","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}`)
	var big strings.Builder
	big.WriteString(`{"object":"list","data":[`)
	for n := range 2000 {
		if n > 0 {
			big.WriteByte(',')
		}
		fmt.Fprintf(&big, `{"embedding":[%s0.5],"index":%d}`, strings.Repeat("-0.0123456,", 100), n)
	}
	big.WriteString(`],"model":"real","usage":{"prompt_tokens":9,"total_tokens":9}}`)
	b.Run("event with another name", func(b *testing.B) {
		a := Answer{Model: "asked"}
		var out []byte
		b.ReportAllocs()
		for b.Loop() {
			a.Reset()
			out = a.Feed(out[:0], event)
		}
	})
	b.Run("embeddings 2 MB", func(b *testing.B) {
		b.SetBytes(int64(big.Len()))
		b.ReportAllocs()
		raw := []byte(big.String())
		for b.Loop() {
			a := Answer{}
			a.See(raw)
			if !a.HasUsage {
				b.Fatal("usage was not seen")
			}
		}
	})
}

func TestWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"id":"long id","choices":[{"message":{"role":"assistant","content":"12345","tool_calls":[{"function":{"name":"f","arguments":"67"}}]}}]}`: 7,
		`{"content":[{"type":"text","text":"123"},"4"]}`: 4,
		`{"content":"1`: 0,
		`[]`:            0,
	} {
		if got := Words([]byte(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}
