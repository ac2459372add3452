package body

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func sent(t testing.TB, p Pieces) string {
	t.Helper()
	all, err := io.ReadAll(p.Reader())
	if err != nil || len(all) != p.Len() {
		t.Errorf("%d bytes of %d: %v", len(all), p.Len(), err)
	}
	return string(all)
}

func TestRead_TakesWhatRoutingNeeds(t *testing.T) {
	t.Parallel()
	r, err := Read([]byte(` {"model" : "qw\u0065n", "stream":true,"max_tokens":7,"max_completion_tokens":9,
"stream_options":{"include_usage" : true},"messages":[{"role":"system","content":"be brief","stream":false}],"top_k":5} `))
	if err != nil {
		t.Fatal(err)
	}
	if r.Model != "qwen" || !r.Stream || !r.WantUsage || *r.MaxTokens != 9 {
		t.Errorf("%+v", r)
	}
}

func TestRead_PromptTokens(t *testing.T) {
	t.Parallel()
	picture := strings.Repeat("QUJD", 10_000)
	for body, want := range map[string]int{
		`{"model":"m","prompt":"` + strings.Repeat("word ", 80) + `"}`:                                                         100,
		`{"model":"m","prompt":[1,2,3,4,5]}`:                                                                                   5,
		`{"model":"m","input":["abcd","efgh"],"temperature":1,"user":"` + strings.Repeat("u", 100) + `"}`:                      2,
		`{"model":"m","messages":[{"role":"user","content":[{"image_url":{"url":"data:image/png;base64,` + picture + `"}}]}]}`: 1,
		`{"model":"m","messages":[{"role":"user","content":[{"input_audio":{"data":"` + picture + `"}}]}]}`:                    1,
		`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("\u4f60", 400) + `"}]}`:                         301,
		`{"model":"m"}`: 0,
	} {
		r, err := Read([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if r.PromptTokens != want {
			t.Errorf("%.60s: %d tokens, want %d", body, r.PromptTokens, want)
		}
	}
}

func TestRead_Refuses(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 300) + strings.Repeat("]", 300)
	for body, want := range map[string]string{
		``:                                        "not a JSON object",
		`null`:                                    "not a JSON object",
		`[]`:                                      "not a JSON object",
		`"model"`:                                 "not a JSON object",
		`{}`:                                      "you must provide a model parameter",
		`{"model":""}`:                            "you must provide a model parameter",
		`{"Model":"m"}`:                           "you must provide a model parameter",
		`{"model":7}`:                             "model must be a string, not a number",
		`{"model":null}`:                          "model must be a string, not null",
		`{"model":["m"]}`:                         "model must be a string, not a list",
		`{"model":"m"`:                            "it ends in the middle",
		`{"model":"m}`:                            "it ends in the middle",
		`{"model":"m"}{}`:                         "something after the end",
		`{"model":"m",}`:                          "the name of a field is missing",
		`{"model":"m" "a"}`:                       "a comma or a closing bracket is missing",
		`{"model":"m","a":[1,]}`:                  "a value is missing",
		`{"model":"m","a":[1}`:                    "a comma or a closing bracket is missing",
		`{"model":"m","a":01}`:                    "a comma or a closing bracket is missing",
		`{"model":"m","a":-}`:                     "a bad number",
		`{"model":"m","a":1.}`:                    "a bad number",
		`{"model":"m","a":nul}`:                   "an unknown word",
		`{"model":"m","a":NaN}`:                   "a value is missing",
		`{"model":"m","a":"\x"}`:                  "a bad escape",
		`{"model":"m","a":"\u12g4"}`:              "a bad escape",
		"{\"model\":\"m\",\"a\":\"\n\"}":          "a control character",
		"\xef\xbb\xbf{\"model\":\"m\"}":           "byte order mark",
		"{\"model\":\"\xff\"}":                    "not UTF-8",
		"\xff\xfe{\x00":                           "not UTF-8",
		`{"model":"m","stream":"yes"}`:            "stream must be a bool, not a string",
		`{"model":"m","stream":1}`:                "stream must be a bool, not a number",
		`{"model":"m","stream_options":[]}`:       "stream_options must be an object",
		`{"model":"m","model":"n"}`:               `the field "model" is there twice`,
		`{"model":"m","mod\u0065l":"n"}`:          `the field "model" is there twice`,
		`{"model":"m","a":` + deep + `}`:          "more than 256 deep",
		`{"model":"m","messages":[` + deep + `]}`: "more than 256 deep",
		`{"model":"m","stream_options":{"a":"b","a":1}}`:         "stream_options.a is there twice",
		`{"model":"m","stream_options":{"include_usage":"yes"}}`: "stream_options.include_usage must be a bool",
	} {
		_, err := Read([]byte(body))
		if !errors.Is(err, ErrBad) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: want %q, got %v", body, want, err)
		}
	}
	many := `{"model":"m"`
	for n := range 200 {
		many += fmt.Sprintf(`,"f%d":%d`, n, n)
	}
	if _, err := Read([]byte(many + `}`)); err != nil {
		t.Error(err)
	}
	if _, err := Read([]byte(many + `,"f150":1}`)); err == nil {
		t.Error("a field that is there twice among many is taken")
	}
}

// TestSent_OnlyWhatWasSaidChanges: P78.
func TestSent_OnlyWhatWasSaidChanges(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"model":"a","top_k":5,"chat_template_kwargs":{"x":1},"seed":12345678901234567890}`: `{"model":"real","top_k":5,"chat_template_kwargs":{"x":1},"seed":12345678901234567890}`,
		` {"model" : "a" ,"stream":true}`:                                            ` {"stream_options":{"include_usage":true},"model" : "real" ,"stream":true}`,
		`{"stream":true,"stream_options":null,"model":"a"}`:                          `{"stream":true,"stream_options":{"include_usage":true},"model":"real"}`,
		`{"stream":true,"stream_options":{ },"model":"a"}`:                           `{"stream":true,"stream_options":{"include_usage":true},"model":"real"}`,
		`{"stream":true,"stream_options":{"b":1},"model":"a"}`:                       `{"stream":true,"stream_options":{"include_usage":true,"b":1},"model":"real"}`,
		`{"stream":true,"model":"a","stream_options":{"include_usage": false}}`:      `{"stream":true,"model":"real","stream_options":{"include_usage": true}}`,
		`{"stream":true,"model":"a","stream_options":{"include_usage":null}}`:        `{"stream":true,"model":"real","stream_options":{"include_usage":true}}`,
		`{"stream":true,"model":"a","stream_options":{"include_usage":true}}`:        `{"stream":true,"model":"real","stream_options":{"include_usage":true}}`,
		`{"stream":false,"model":"a","stream_options":{"include_usage":false}}`:      `{"stream":false,"model":"real","stream_options":{"include_usage":false}}`,
		`{"stream":true,"model":"real"}`:                                             `{"stream_options":{"include_usage":true},"stream":true,"model":"real"}`,
		`{"model":"a","x":{"model":"a"},"messages":[{"content":"\"model\":\"a\""}]}`: `{"model":"real","x":{"model":"a"},"messages":[{"content":"\"model\":\"a\""}]}`,
	} {
		r, err := Read([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := sent(t, r.Sent("real", true)); got != want {
			t.Errorf("%s\nbecame %s\nwant   %s", body, got, want)
		}
		if got := sent(t, r.Sent("", false)); got != body {
			t.Errorf("%s\nbecame %s though nothing was to change", body, got)
		}
	}
	r, err := Read([]byte(`{"model":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := sent(t, r.Sent("<名>\"\x01", false)); got != `{"model":"\u003c名\u003e\"\u0001"}` {
		t.Error(got)
	}
	if all, err := io.ReadAll(iotest.OneByteReader(r.Sent("b", false).Reader())); string(all) != `{"model":"b"}` || err != nil {
		t.Errorf("%s, %v", all, err)
	}
}

// FuzzRead: what is taken is what Go's own decoder takes, and what is sent differs in what was to change only.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","stream":true,"stream_options":{}}`, `{"model":"m","messages":[{"role":"user","content":"a"}],"n":1e5}`,
		`{"mod\u0065l":"m","stream":true,"stream_options":{"include_usage":false}}`, `{"model":"m","a":[[{"b":[]}],"\\\"",-0.5e+3,true,null]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := Read(raw)
		if err != nil {
			if !errors.Is(err, ErrBad) {
				t.Errorf("%q: %v", raw, err)
			}
			return
		}
		before, after := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		if err := json.Unmarshal(raw, &before); err != nil {
			t.Fatalf("%q is taken: %v", raw, err)
		}
		var model string
		if err := json.Unmarshal(before["model"], &model); err != nil || model != r.Model {
			t.Errorf("%q: model %q, %v", raw, r.Model, err)
		}
		changed := sent(t, r.Sent("other", true))
		if err := json.Unmarshal([]byte(changed), &after); err != nil {
			t.Fatalf("%q became %q: %v", raw, changed, err)
		}
		if string(after["model"]) != `"other"` {
			t.Errorf("%q became %q", raw, changed)
		}
		var options struct {
			IncludeUsage bool `json:"include_usage"`
		}
		if r.Stream && (json.Unmarshal(after["stream_options"], &options) != nil || !options.IncludeUsage) {
			t.Errorf("%q became %q: usage is not asked for", raw, changed)
		}
		for _, name := range []string{"model", "stream_options"} {
			delete(before, name)
			delete(after, name)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%q (-want +got)\n%s", raw, diff)
		}
	})
}

// agentBody is a conversation of about 400 KB, as coding agents send them.
func agentBody() []byte {
	var b strings.Builder
	b.WriteString(`{"model":"sim-7b","stream":true,"temperature":0.2,"messages":[{"role":"system","content":"You are an agent."}`)
	for n := range 100 {
		fmt.Fprintf(&b, `,{"role":%q,"content":"%s"}`, []string{"user", "assistant"}[n%2], strings.Repeat(`func main() {\n\tfmt.Println(\"hello\")\n}\n`, 95))
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

func BenchmarkRead(b *testing.B) {
	for name, raw := range map[string][]byte{
		"chat 450 B":   []byte(`{"model":"sim-7b","messages":[{"role":"user","content":"` + strings.Repeat("word ", 75) + `"}],"max_tokens":20}`),
		"agent 400 KB": agentBody(),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				r, err := Read(raw)
				if err != nil {
					b.Fatal(err)
				}
				r.Sent("", true)
			}
		})
	}
}

// TestLongest: what all answers together may have.
func TestLongest(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		`{"model":"m"}`: -1, `{"model":"m","n":5}`: -1, `{"model":"m","max_tokens":null}`: -1,
		`{"model":"m","max_tokens":7}`: 7, `{"model":"m","max_completion_tokens":7,"max_tokens":5}`: 7, `{"model":"m","max_output_tokens":0}`: 0,
		`{"n":3,"model":"m","max_tokens":7}`: 21, `{"model":"m","max_tokens":7,"n":2,"best_of":4}`: 28, `{"model":"m","max_tokens":-7,"n":-2}`: 0,
		`{"model":"m","max_tokens":9000000000000000000,"n":9000000000000000000}`: 1 << 60, `{"model":"m","max_tokens":7,"n":"x"}`: 7,
	} {
		r, err := Read([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got := int64(-1)
		if n := r.Longest(); n != nil {
			got = *n
		}
		if got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}
