//go:build unix

package storetest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// testText: what clients send as names may hold what one engine takes and the other does not, or be too long for an
// index. Both engines refuse the same, find nothing under it, and never fail for it.
func testText(t *testing.T, open Open) {
	s := open(t)
	ctx := t.Context()
	ok(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "a", 8)}))
	for name, bad := range map[string]string{"NUL": "a\x00b", "broken UTF-8": "a\xffb", "too long": strings.Repeat("模", 400)} {
		for write, err := range map[string]error{
			"key":         s.CreateKey(ctx, store.Key{ID: "k1", Name: bad}),
			"job":         second(s.PutJob(ctx, store.Job{Namespace: "default", ID: bad})),
			"decision":    s.AddDecision(ctx, store.Decision{Namespace: "default", JobID: bad}),
			"intent":      second(s.PutIntent(ctx, store.Intent{CardUUID: bad})),
			"endpoint":    second(s.CreateEndpoint(ctx, store.Endpoint{Model: bad})),
			"reservation": s.Reserve(ctx, reservation("r1", bad, claim("n1", "a", 1))),
			"claim":       s.Reserve(ctx, reservation("r1", "llm", claim("n1", bad, 1))),
			"settle":      s.Settle(ctx, "default", bad, []store.Claim{live("al1", "n1", "a", 1)}, 0),
			"pools":       s.PutPools(ctx, "n1", []store.Pool{pool("n1", bad, 1)}),
		} {
			if !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%s as %s: %v", name, write, err)
			}
		}
		for read, err := range map[string]error{
			"job":             second(s.Job(ctx, "default", bad)),
			"evaluation":      second(s.JobByEval(ctx, bad)),
			"endpoint":        second(s.Endpoint(ctx, bad)),
			"model":           second(s.EndpointByModel(ctx, bad)),
			"intent":          second(s.Intent(ctx, bad)),
			"reservation":     second(s.ReservationOf(ctx, "default", bad)),
			"setting":         second(s.Setting(ctx, bad)),
			"delete key":      s.DeleteKey(ctx, "", bad),
			"delete job":      s.DeleteJob(ctx, "default", bad),
			"delete endpoint": s.DeleteEndpoint(ctx, "", bad),
		} {
			if !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s as %s: %v", name, read, err)
			}
		}
		ok(t, s.Release(ctx, "default", bad))
		same(t, 0, len(ok2(s.Decisions(ctx, "default", bad, 9))(t)))
		claimed := ok2(s.ClaimIntent(ctx, bad, 1, "n1"))(t)
		reported := ok2(s.ReportIntent(ctx, bad, store.IntentDone, ""))(t)
		jobs, _, err := s.ListJobs(ctx, store.JobFilter{Prefix: bad}, store.Page{})
		ok(t, err)
		if claimed || reported || len(jobs) != 0 {
			t.Errorf("%s: something was found", name)
		}
	}
	same(t, map[string]int{"n1 a": 0}, taken(t, s))

	// What only people read is kept as far as it can be, and never loses its neighbours.
	ok(t, s.AddUsage(ctx, []store.Usage{{ID: "u1", Model: "qwen", StartedAt: epoch}, {ID: "u2", Model: "a\x00\xffb", StartedAt: epoch}}))
	us, _, err := s.ListUsage(ctx, "", time.Time{}, time.Time{}, store.Page{})
	ok(t, err)
	same(t, []string{"a\uFFFD\uFFFDb", "qwen"}, []string{us[0].Model, us[1].Model})
	j := ok2(s.PutJob(ctx, store.Job{Namespace: "default", ID: "大模型 🚀", Reason: "why \x00", Spec: json.RawMessage(`"\u0000"`)}))(t)
	same(t, j, ok2(s.Job(ctx, "default", "大模型 🚀"))(t))
}

func second[T any](_ T, err error) error { return err }
