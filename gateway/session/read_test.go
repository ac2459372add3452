package session

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var scope = Scope{Tenant: "t", Model: "m"}

func keysOf(body string) Keys { return Read([]byte(body), scope).Keys }

func TestRead_Levels(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body, header string
		single       bool
		want         [Levels]bool
	}{
		"nothing":                           {body: `{}`},
		"no object":                         {body: `[1]`},
		"every level":                       {`{"prompt_cache_key":"k","user":"u","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`, "h", false, [Levels]bool{true, true, true, true, true}},
		"the first turn has no answer":      {body: `{"messages":[{"role":"user","content":"a"}]}`, want: [Levels]bool{LevelOpening: true}},
		"an answer that is all calls":       {body: `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}`, want: [Levels]bool{LevelAnswered: true, LevelOpening: true}},
		"system alone":                      {body: `{"messages":[{"role":"system","content":"a"}]}`},
		"text without roles":                {body: `{"prompt":"a long story"}`},
		"a list of responses input":         {body: `{"instructions":"s","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}]}`, want: [Levels]bool{LevelOpening: true}},
		"embeddings":                        {body: `{"input":"a","user":"u"}`, single: true, want: [Levels]bool{LevelUser: true}},
		"fields of a wrong type":            {body: `{"user":7,"prompt_cache_key":["k"],"messages":{"role":"user","content":"a"}}`},
		"empty names":                       {body: `{"user":"","prompt_cache_key":""}`},
		"null":                              {body: `{"user":null,"messages":null,"prompt_cache_key":null}`},
		"names in other letters":            {body: `{"User":"u","Messages":[{"role":"user","content":"a"}]}`},
		"cut in the middle of the messages": {body: `{"user":"u","messages":[{"role":"user","content":"a`, want: [Levels]bool{LevelUser: true, LevelOpening: true}},
	} {
		in := scope
		in.Header, in.Single = tc.header, tc.single
		got := Read([]byte(tc.body), in).Keys
		for level, want := range tc.want {
			if (got[level] != 0) != want {
				t.Errorf("%s: level %d: there %v, want %v", name, level, got[level] != 0, want)
			}
		}
	}
}

// A conversation is found again in its next turn, however its client writes what it repeats.
func TestRead_TurnsOfOneConversation(t *testing.T) {
	t.Parallel()
	first := keysOf(`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]}`)
	second := keysOf(`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}`)
	third := keysOf(`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]}`)
	if first[LevelOpening] != second[LevelOpening] || second[LevelOpening] != third[LevelOpening] || second[LevelAnswered] != third[LevelAnswered] {
		t.Errorf("turns differ: %x, %x, %x", first, second, third)
	}
	for name, body := range map[string]string{
		"fields in another order":   `{"messages":[{"content":"s","role":"system"},{"content":"a","role":"user"}]}`,
		"spaces":                    "{ \"messages\" : [ { \"role\" : \"system\" ,\n\"content\" : \"s\" } , {\"role\":\"user\",\"content\":\"a\"} ] }",
		"parts":                     `{"messages":[{"role":"system","content":[{"type":"text","text":"s"}]},{"role":"user","content":[{"type":"text","text":"a"}]}]}`,
		"a mark of the cache":       `{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}`,
		"developer for system":      `{"messages":[{"role":"developer","content":"s"},{"role":"user","content":"a"}]}`,
		"Anthropic's system":        `{"system":"s","messages":[{"role":"user","content":"a"}]}`,
		"instructions and input":    `{"input":"a","instructions":"s"}`,
		"the last of two fields":    `{"messages":[{"role":"user","content":"other"}],"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]}`,
		"names that are escaped":    `{"m\u0065ssages":[{"role":"system","content":"s"},{"rol\u0065":"us\u0065r","content":"a"}]}`,
		"fields that do not matter": `{"temperature":0,"x":[{"messages":[{"role":"user","content":"y"}]}],"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]}`,
	} {
		if got := keysOf(body); got[LevelOpening] != first[LevelOpening] {
			t.Errorf("%s: another conversation", name)
		}
	}
	for name, body := range map[string]string{
		"another system prompt": `{"messages":[{"role":"system","content":"z"},{"role":"user","content":"a"}]}`,
		"another question":      `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"z"}]}`,
		"the border elsewhere":  `{"messages":[{"role":"system","content":"sa"},{"role":"user","content":""}]}`,
		"no system prompt":      `{"messages":[{"role":"user","content":"sa"}]}`,
	} {
		if got := keysOf(body); got[LevelOpening] == first[LevelOpening] {
			t.Errorf("%s: taken for the same conversation", name)
		}
	}
}

func TestRead_KeysBelongToTenantModelAndLevel(t *testing.T) {
	t.Parallel()
	const body = `{"prompt_cache_key":"x","user":"x","messages":[{"role":"user","content":"x"}]}`
	seen := map[Key]string{}
	for _, in := range []Scope{{Tenant: "a", Model: "m", Header: "x"}, {Tenant: "b", Model: "m", Header: "x"}, {Tenant: "a", Model: "n", Header: "x"}, {Tenant: "am", Header: "x"}} {
		for level, k := range Read([]byte(body), in).Keys {
			if k == 0 {
				continue
			}
			here := fmt.Sprintf("%+v level %d", in, level)
			if there, ok := seen[k]; ok {
				t.Errorf("%s and %s have one key", here, there)
			}
			seen[k] = here
		}
	}
	if len(seen) != 16 {
		t.Errorf("%d keys, want 16", len(seen))
	}
}

func conversation(turns ...string) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var list []message
	for i, text := range turns {
		list = append(list, message{[]string{"user", "assistant"}[i%2], text})
	}
	raw, err := json.Marshal(map[string]any{"model": "m", "messages": list})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// The chain of a conversation begins with the chain of its earlier turns, and with nothing of another one's.
func TestRead_ChainGrowsWithTheConversation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.Custom(func(t *rapid.T) string {
			return strings.Repeat(rapid.StringN(1, 8, 30).Draw(t, "word"), rapid.IntRange(1, 900).Draw(t, "times"))
		})
		turns := rapid.SliceOfN(text, 1, 7).Draw(t, "turns")
		n := rapid.IntRange(1, len(turns)).Draw(t, "earlier")
		early := Read([]byte(conversation(turns[:n]...)), scope)
		late := Read([]byte(conversation(turns...)), scope)
		if len(late.Chain) < len(early.Chain) || early.Tokens > late.Tokens {
			t.Fatalf("the later turn has %d blocks and %d tokens, the earlier %d and %d", len(late.Chain), late.Tokens, len(early.Chain), early.Tokens)
		}
		if diff := cmp.Diff(early.Chain, late.Chain[:len(early.Chain)], cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-earlier +later):\n%s", diff)
		}
		for i, b := range late.Chain {
			before := 0
			if i > 0 {
				before = late.Chain[i-1].Tokens
			}
			if size := b.Tokens - before; size < shortBlock/bytesPerToken-1 || size > longBlock/bytesPerToken+1 {
				t.Fatalf("block %d has %d tokens", i, size)
			}
		}
		other := Read([]byte(conversation(append([]string{"!" + turns[0]}, turns[1:]...)...)), scope)
		for i := range min(len(other.Chain), len(late.Chain)) {
			if other.Chain[i].Hash == late.Chain[i].Hash {
				t.Fatalf("block %d of another conversation is the same", i)
			}
		}
	})
}

func TestRead_Tokens(t *testing.T) {
	t.Parallel()
	picture := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 400_000) + `"}}`
	for name, tc := range map[string]struct {
		body     string
		min, max int
	}{
		"text":      {conversation(strings.Repeat("word ", 8000)), 9000, 11000},
		"a picture": {`{"messages":[{"role":"user","content":[{"type":"text","text":"what is it"},` + picture + `]}]}`, 900, 1100},
		"tokens":    {`{"prompt":[` + strings.Repeat("101,", 1000) + `7]}`, 900, 1100},
		"a batch":   {`{"input":["` + strings.Repeat("a", 4000) + `","` + strings.Repeat("b", 4000) + `"]}`, 1900, 2100},
		"tools":     {`{"tools":[{"x":"` + strings.Repeat("a", 4000) + `"}],"messages":[]}`, 900, 1100},
		"very long": {conversation(strings.Repeat("x", 8<<20)), 2 << 20, 2<<20 + 100},
	} {
		p := Read([]byte(tc.body), scope)
		if p.Tokens < tc.min || p.Tokens > tc.max {
			t.Errorf("%s: %d tokens, want %d to %d", name, p.Tokens, tc.min, tc.max)
		}
		if len(p.Chain) > maxBlocks {
			t.Errorf("%s: %d blocks", name, len(p.Chain))
		}
	}
}

// TestRead_Deep: depth costs no stack.
func TestRead_Deep(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":[`, 5_000_000)
	if p := Read([]byte(`{"x":`+deep), scope); p.Keys != (Keys{}) {
		t.Errorf("keys out of nothing: %+v", p.Keys)
	}
	if p := Read([]byte(`{"messages":[{"role":"user","content":`+deep), scope); p.Keys[LevelUser] != 0 {
		t.Errorf("keys out of nothing: %+v", p.Keys)
	}
}

// FuzzRead: nothing breaks it, and of valid text the scanner sees what encoding/json sees.
func FuzzRead(f *testing.F) {
	f.Add([]byte(conversation("a", "b", "c")))
	f.Add([]byte(`{"user":"a\"\\","user":"b\\\"","messages":[{"role":"user","content":[{"text":"x"},"y",7]}]}`))
	f.Add([]byte(`{"input":[1,2],"prompt":["a"],"tools":{}}`))
	f.Add([]byte(`{"a":"\\`))
	f.Fuzz(func(t *testing.T, body []byte) {
		p := Read(body, scope)
		for i := 1; i < len(p.Chain); i++ {
			if p.Chain[i].Tokens < p.Chain[i-1].Tokens {
				t.Errorf("block %d ends before the one before it", i)
			}
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(body, &want) != nil || want == nil || !utf8.Valid(body) {
			return
		}
		got := map[string]json.RawMessage{}
		s := scanner{text: body}
		s.members(func(name string) { got[name] = json.RawMessage(s.value()) })
		if diff := cmp.Diff(want, got); diff != "" && !strings.Contains(string(body), `\`) {
			t.Errorf("%q (-json +scanner):\n%s", body, diff)
		}
		var user string
		if json.Unmarshal(want["user"], &user) == nil {
			if key := scope.key(LevelUser, user); key != p.Keys[LevelUser] {
				t.Errorf("%q: user %q has key %x, not %x", body, user, key, p.Keys[LevelUser])
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	for name, size := range map[string]int{"450B": 450, "400KB": 400_000} {
		code := "func f(x int) string {\\n\\treturn \\\"y\\\" + strconv.Itoa(x) // and so on\\n}\\n"
		body := []byte(`{"model":"m","user":"u","messages":[{"role":"system","content":"be good"},{"role":"user","content":"` + strings.Repeat(code, 1+size/len(code)) + `"}]}`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				Read(body, scope)
			}
		})
	}
}

// The keys are those of the messages alone, whether or not they are hashed together with the prompt around them.
func TestRead_KeysOfTheMessagesAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var messages []string
		for range rapid.IntRange(0, 6).Draw(t, "messages") {
			role := rapid.SampledFrom([]string{"system", "developer", "user", "assistant", "tool"}).Draw(t, "role")
			content := `"` + strings.Repeat("word ", rapid.SampledFrom([]int{0, 1, 100, 500, 1000}).Draw(t, "words")) + `"`
			if rapid.Bool().Draw(t, "in parts") {
				content = `[{"type":"text","text":` + content + `},{"type":"image_url","image_url":{"url":"x"}}]`
			}
			calls := rapid.SampledFrom([]string{"", `,"tool_calls":[{"id":"1"}]`}).Draw(t, "calls")
			messages = append(messages, `{"role":"`+role+`","content":`+content+calls+`}`)
		}
		list := `"messages":[` + strings.Join(messages, ",") + `]}`
		if alone, among := keysOf(`{`+list), keysOf(`{"tools":[{"name":"f"}],`+list); alone != among {
			t.Errorf("%x alone, %x among tools", alone, among)
		}
	})
	long := `"messages":[{"role":"user","content":"` + strings.Repeat("x", longBlock*maxBlocks+10) + `"},{"role":"assistant","content":"a"}]}`
	if alone, among := keysOf(`{`+long), keysOf(`{"tools":[{"name":"f"}],`+long); alone != among {
		t.Errorf("of a prompt longer than a chain: %x alone, %x among tools", alone, among)
	}
}
