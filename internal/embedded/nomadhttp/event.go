package nomadhttp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// heartbeat is how often a quiet stream says that it lives. Source: Nomad's own streams.
const heartbeat = 30 * time.Second

// topics are what a stream asks for: topic → keys, with "*" for any of either.
type topics map[string][]string

func parseTopics(values []string) topics {
	t := topics{}
	for _, v := range values {
		topic, key, ok := strings.Cut(v, ":")
		if !ok || key == "" {
			key = "*"
		}
		t[topic] = append(t[topic], key)
	}
	if len(t) == 0 {
		t["*"] = []string{"*"}
	}
	return t
}

func (t topics) want(e state.Event) bool {
	for _, topic := range []string{e.Topic, "*"} {
		for _, key := range t[topic] {
			if key == "*" || key == e.Key || slices.Contains(e.FilterKeys, key) {
				return true
			}
		}
	}
	return false
}

// events streams what changes, one JSON object a line.
func (q *request) events() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	index, err := q.number("index")
	if err != nil {
		return nil, core.Bad("Unable to parse index: %s", err)
	}
	want, ns := parseTopics(q.query["topic"]), q.namespace()
	cursor := q.Core.Store().Events().From(index)
	q.w.Header().Set("Content-Type", "application/json")
	out := newLines(q)
	if !out.send(struct{}{}) {
		return noAnswer{}, nil
	}
	for {
		ctx, cancel := context.WithTimeout(q.r.Context(), heartbeat)
		batch, err := cursor.Next(ctx)
		cancel()
		switch {
		case q.r.Context().Err() != nil:
			return noAnswer{}, nil
		case errors.Is(err, context.DeadlineExceeded):
			if !out.send(struct{}{}) {
				return noAnswer{}, nil
			}
			continue
		}
		if q.DropEvents != nil && q.DropEvents(batch.Index) {
			continue
		}
		wanted := slices.DeleteFunc(slices.Clone(batch.Events), func(e state.Event) bool {
			return !want.want(e) || (ns != "*" && e.Namespace != "" && e.Namespace != ns)
		})
		if len(wanted) > 0 && !out.send(map[string]any{"Index": batch.Index, "Events": wanted}) {
			return noAnswer{}, nil
		}
	}
}

// lines writes JSON objects and lets each go at once.
type lines struct {
	q     *request
	enc   *json.Encoder
	flush *http.ResponseController
}

func newLines(q *request) *lines {
	enc := json.NewEncoder(q.w)
	enc.SetEscapeHTML(false)
	return &lines{q: q, enc: enc, flush: http.NewResponseController(q.w)}
}

// send reports whether the client is still there.
func (l *lines) send(v any) bool {
	err := l.enc.Encode(v)
	if err == nil {
		err = l.flush.Flush()
	}
	if err != nil {
		l.q.Logger.Debug("stream ended", "path", l.q.r.URL.Path, "error", err)
	}
	return err == nil
}
