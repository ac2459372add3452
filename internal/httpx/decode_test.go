package httpx

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type order struct {
	Name  string            `json:"name"`
	Count int32             `json:"count"`
	Big   uint64            `json:"big"`
	Share float64           `json:"share"`
	Tags  map[string]string `json:"tags"`
	Items []struct {
		Label string `json:"label"`
		On    *bool  `json:"on"`
	} `json:"items"`
}

func TestDecodeJSON(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		body, contentType string
		wantStatus        int
		wantCode          string
		wantPointer       string
		wantDetail        string // part of the detail
	}{
		"fine":                   {body: `{"name":"a","count":2,"items":[{"label":"x","on":true}]}`},
		"fine without a type":    {body: `{}`, contentType: "-"},
		"fine with a charset":    {body: `{}`, contentType: "application/json; charset=utf-8"},
		"fine problem type":      {body: `{}`, contentType: "application/merge-patch+json"},
		"a form":                 {body: `a=b`, contentType: "application/x-www-form-urlencoded", wantStatus: 415, wantCode: CodeUnsupportedType, wantDetail: "application/json"},
		"a type that is none":    {body: `{}`, contentType: ";;;", wantStatus: 415, wantCode: CodeUnsupportedType},
		"too large":              {body: `{"name":"` + strings.Repeat("x", 300) + `"}`, wantStatus: 413, wantCode: CodeTooLarge, wantDetail: "256 bytes"},
		"empty":                  {body: "  \n", wantStatus: 400, wantCode: CodeEmptyBody},
		"cut in an object":       {body: "{\n\"name\":", wantStatus: 400, wantCode: CodeTruncated, wantDetail: "line 2, column 8"},
		"cut in a string":        {body: `{"name":"a`, wantStatus: 400, wantCode: CodeTruncated},
		"not JSON":               {body: "{\n  name: 1}", wantStatus: 400, wantCode: CodeNotJSON, wantDetail: "line 2, column"},
		"two values":             {body: `{} {}`, wantStatus: 400, wantCode: CodeNotJSON, wantDetail: "more after"},
		"garbage after":          {body: `{} x`, wantStatus: 400, wantCode: CodeNotJSON, wantDetail: "more after"},
		"a list for the body":    {body: `[1]`, wantStatus: 400, wantCode: CodeWrongType, wantPointer: "", wantDetail: "the body must be an object, not array"},
		"a string for a number":  {body: `{"name":"a","count":"2"}`, wantStatus: 400, wantCode: CodeWrongType, wantPointer: "/count", wantDetail: "/count must be a whole number of 32 bits, not string"},
		"a fraction for a count": {body: `{"count": 1.5}`, wantStatus: 400, wantCode: CodeWrongType, wantPointer: "/count", wantDetail: "not number 1.5"},
		"a number that is large": {body: `{"count": 3000000000}`, wantStatus: 400, wantCode: CodeWrongType, wantPointer: "/count"},
		"below 0":                {body: `{"big": -1}`, wantStatus: 400, wantCode: CodeWrongType, wantPointer: "/big", wantDetail: "not below 0"},
		"deep in a list":         {body: `{"items":[{"label":"a"},{"label":"b","on":"yes"}]}`, wantStatus: 400, wantCode: CodeWrongType, wantPointer: "/items/1/on", wantDetail: "true or false"},
		"an object for a string": {body: `{"items":[{"label":{"a":1}}]}`, wantStatus: 400, wantCode: CodeWrongType, wantPointer: "/items/0/label", wantDetail: "a string, not object"},
		"a key with a slash":     {body: `{"tags":{"a/b~c":1}}`, wantStatus: 400, wantCode: CodeWrongType, wantPointer: "/tags/a~1b~0c"},
		"unknown at the top":     {body: `{"nmae":"a"}`, wantStatus: 400, wantCode: CodeUnknownField, wantPointer: "/nmae"},
		"unknown in a list":      {body: `{"name":"a","items":[{"label":"x"},{"name":"y"}]}`, wantStatus: 400, wantCode: CodeUnknownField, wantPointer: "/items/1/name"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body))
			switch c.contentType {
			case "-":
			case "":
				r.Header.Set("Content-Type", "application/json")
			default:
				r.Header.Set("Content-Type", c.contentType)
			}
			var got order
			err := DecodeJSON(httptest.NewRecorder(), r, 256, &got)
			if c.wantStatus == 0 {
				if err != nil {
					t.Fatalf("unexpected: %v", err)
				}
				return
			}
			var p *Problem
			if !errors.As(err, &p) {
				t.Fatalf("got %v, want a problem", err)
			}
			if p.Status != c.wantStatus || p.Code != c.wantCode || !strings.Contains(p.Detail, c.wantDetail) {
				t.Errorf("got %d %s %q", p.Status, p.Code, p.Detail)
			}
			if c.wantPointer != "" && (len(p.Errors) != 1 || p.Errors[0].Pointer != c.wantPointer) {
				t.Errorf("got fields %v, want %s", p.Errors, c.wantPointer)
			}
		})
	}
}

func TestDecodeJSON_BodyShorterThanAnnounced(t *testing.T) {
	t.Parallel()
	answers := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v order
		answers <- DecodeJSON(w, r, 1000, &v)
	}))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"name\":")); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	var p *Problem
	if err := <-answers; !errors.As(err, &p) || p.Status != 400 || p.Code != CodeTruncated {
		t.Errorf("got %v", err)
	}
}

func TestUnmarshalLoose_IgnoresUnknownFields(t *testing.T) {
	t.Parallel()
	var v order
	if err := UnmarshalLoose([]byte(`{"name":"a","theirs":1}`), &v); err != nil || v.Name != "a" {
		t.Errorf("got %v, %+v", err, v)
	}
}

func TestWriteProblem(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err  error
		want string
	}{
		"a problem": {
			err:  NewProblem(409, "taken", "someone was faster").At("/name", "exists"),
			want: `{"type":"about:blank","title":"Conflict","status":409,"code":"taken","detail":"someone was faster","errors":[{"pointer":"/name","detail":"exists"}]}`,
		},
		"an error that clients must not read": {
			err:  errors.New("dial 10.0.0.1: refused"),
			want: `{"type":"about:blank","title":"Internal Server Error","status":500,"code":"internal","detail":"an internal error, see the server's log"}`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			WriteProblem(w, c.err)
			if diff := cmp.Diff(c.want, strings.TrimSpace(w.Body.String())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got := w.Header().Get("Content-Type"); got != ContentTypeProblem {
				t.Errorf("content type %s", got)
			}
		})
	}
}

func TestWriteJSON_ThatDoesNotEncode(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	WriteJSON(w, 200, make(chan int))
	var p Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 500 || p.Status != 500 {
		t.Errorf("got %d %s (%v)", w.Code, w.Body, err)
	}
}

// FuzzDecodeJSON: whatever is sent, the answer is a value or a problem of the client's, and never a panic.
func FuzzDecodeJSON(f *testing.F) {
	for _, seed := range []string{`{"name":"a"}`, `{"items":[{"on":1}]}`, `[`, `{"a":{"b":[1,{"c":null}]}}`, "\"\xff", `{"tags":{"x":1}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var v order
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		err := DecodeJSON(httptest.NewRecorder(), r, 1<<16, &v)
		var p *Problem
		if err != nil && (!errors.As(err, &p) || p.Status < 400 || p.Status > 499) {
			t.Errorf("%q: %v", body, err)
		}
	})
}
