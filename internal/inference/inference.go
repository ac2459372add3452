// Package inference finds out by asking what serves models behind an address: the kind of engine, its version, the names
// it answers to. Whether it is well, and sending it work, do not belong here.
package inference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// The kinds of engines that are told apart.
const (
	VLLM        = "vllm"
	SGLang      = "sglang"
	LlamaCPP    = "llama.cpp"
	TensorRTLLM = "tensorrt-llm"
	MindIE      = "mindie"
	Simulated   = "simulated" // HeteroFlow's own, for trials
	Other       = "other"     // speaks OpenAI's language, which one it is it does not say
)

// Engine is what was found.
type Engine struct {
	Kind    string
	Version string // empty: it does not tell
	// Models are the names that requests may ask for, in the engine's order; nil when they cannot be learned.
	Models []string
}

// ErrNoEngine is said of an address behind which no engine was made out.
var ErrNoEngine = errors.New("no inference engine was made out")

// Limits of what is taken from an answer: what runs in a task may answer anything.
const (
	maxAnswer = 1 << 20
	maxModels = 64
	maxText   = 200
)

// owners are how engines sign their models, in lower case.
var owners = map[string]string{
	"vllm": VLLM, "sglang": SGLang, "llamacpp": LlamaCPP, "tensorrt_llm": TensorRTLLM, "mindie server": MindIE,
}

// versionAt is where an engine tells its version, and in which field. Sources: vLLM and trtllm-serve GET /version; SGLang
// GET /server_info, before 2026 /get_server_info; llama.cpp's server README, GET /props; MindIE Service Developer Guide,
// "querying service metadata", GET /v2.
var versionAt = map[string][]struct{ path, field string }{
	VLLM: {{"/version", "version"}}, TensorRTLLM: {{"/version", "version"}},
	SGLang:   {{"/server_info", "version"}, {"/get_server_info", "version"}},
	LlamaCPP: {{"/props", "build_info"}}, MindIE: {{"/v2", "version"}},
}

// Identify asks what serves models at base, such as http://10.0.0.1:8000. It only reads. A deadline is the caller's.
func Identify(ctx context.Context, client *http.Client, base string) (Engine, error) {
	a := asker{ctx, client, strings.TrimSuffix(base, "/")}
	var list struct {
		Data []struct {
			ID      string `json:"id"`
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	header, err := a.get("/v1/models", &list)
	if ctx.Err() != nil {
		return Engine{}, fmt.Errorf("ask for an engine: %w", ctx.Err())
	}
	e := Engine{}
	for _, m := range list.Data {
		if id := clean(m.ID); id != "" && len(e.Models) < maxModels {
			e.Models = append(e.Models, id)
		}
		if e.Kind == "" {
			e.Kind = owners[strings.ToLower(m.OwnedBy)]
		}
	}
	if strings.HasPrefix(header.Get("Server"), "heteroflow-sim-inference") {
		e.Kind = Simulated
	}
	if e.Kind == "" {
		e.Kind = a.kind()
	}
	if e.Kind == "" && len(e.Models) > 0 {
		e.Kind = Other
	}
	if e.Kind == "" {
		return Engine{}, errors.Join(ErrNoEngine, err)
	}
	for _, at := range versionAt[e.Kind] {
		if e.Version = a.field(at.path, at.field); e.Version != "" {
			break
		}
	}
	return e, nil
}

// kind makes out an engine that does not sign its models, or does not show them without a key.
func (a asker) kind() string {
	switch {
	case a.field("/props", "build_info") != "":
		return LlamaCPP
	case a.field("/get_model_info", "model_path") != "", a.field("/model_info", "model_path") != "":
		return SGLang
	case a.field("/v2", "name") == "MindIE Server":
		return MindIE
	case a.field("/version", "version") != "" && strings.Contains(a.text("/metrics"), "\nvllm:"):
		return VLLM
	}
	return ""
}

type asker struct {
	ctx    context.Context //nolint:containedctx // lives for one call of Identify
	client *http.Client
	base   string
}

// text is an answer as it is; empty without one.
func (a asker) text(path string) string {
	req, err := http.NewRequestWithContext(a.ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return ""
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// get reads a JSON answer.
func (a asker) get(path string, into any) (http.Header, error) {
	req, err := http.NewRequestWithContext(a.ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return resp.Header, fmt.Errorf("%s answers %d", path, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(into); err != nil {
		return resp.Header, fmt.Errorf("%s: %w", path, err)
	}
	return resp.Header, nil
}

// field is one text of a JSON object; empty when it is not there.
func (a asker) field(path, name string) string {
	var object map[string]json.RawMessage
	var value string
	if _, err := a.get(path, &object); err != nil || json.Unmarshal(object[name], &value) != nil {
		return ""
	}
	return clean(value)
}

// clean takes from a text what would spoil a line of an event or a log.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return -1
		}
		return r
	}, s)
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return strings.TrimSpace(s)
}

// String is the engine for people: "vllm 0.10.1 with Qwen/Qwen3-8B".
func (e Engine) String() string {
	text := e.Kind
	if e.Version != "" {
		text += " " + e.Version
	}
	if len(e.Models) > 0 {
		text += " with " + strings.Join(e.Models[:min(3, len(e.Models))], ", ")
	}
	if more := len(e.Models) - 3; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
