package barrier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// service answers one call after the other.
type service struct {
	mu      sync.Mutex
	answers []func(http.ResponseWriter)
	asked   []Arrival
	tokens  []string
	after   func() // each call
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a Arrival
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil || r.URL.Path != "/api/v1/gangs/meet" {
		http.Error(w, "unexpected", http.StatusTeapot)
		return
	}
	s.asked, s.tokens = append(s.asked, a), append(s.tokens, r.Header.Get("Authorization"))
	one := s.answers[min(len(s.asked), len(s.answers))-1]
	if s.after != nil {
		s.after()
	}
	one(w)
}

func says(status int, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		fmt.Fprint(w, body) //nolint:errcheck // a test
	}
}

// meet asks a service that answers so, and moves the clock by step with each call.
func meet(t *testing.T, step time.Duration, answers ...func(http.ResponseWriter)) (Start, *service, []string, error) {
	t.Helper()
	c := clock.NewFake(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	s := &service{answers: answers, after: func() { c.Advance(step) }}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	var events []string
	client := &Client{Server: server.URL + "/", Token: "hf-node-1", HTTP: server.Client(), Clock: c}
	start, err := client.Meet(t.Context(), Arrival{Grant: "g", AllocID: "a1", Index: 2, Cards: []Card{{UUID: "GPU-a"}}}, time.Minute, func(text string) { events = append(events, text) })
	return start, s, events, err
}

func TestMeet_StartsWhenAllCame(t *testing.T) {
	t.Parallel()
	start, s, events, err := meet(t, time.Second,
		says(200, `{"state":"waiting","members":4,"present":2,"reason":"2 of 4 members of the gang came"}`),
		says(200, `{"state":"waiting","members":4,"present":2,"reason":"2 of 4 members of the gang came"}`),
		says(200, `{"state":"started","members":4,"attempt":1,"rank":3,"env":{"RANK":"3"},"files":{"heteroflow/hostfile":"a slots=1\n"}}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	want := Start{Members: 4, Attempt: 1, Rank: 3, Env: map[string]string{"RANK": "3"}, Files: map[string]string{"heteroflow/hostfile": "a slots=1\n"}}
	if diff := cmp.Diff(want, start); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(s.asked) != 3 || s.asked[0].Visit == "" || s.asked[0].Visit != s.asked[2].Visit || s.tokens[0] != "Bearer hf-node-1" {
		t.Errorf("asked %+v with %v", s.asked, s.tokens)
	}
	wantEvents := []string{"Waiting for the other members of the gang", "Waiting for the gang: 2 of 4 members of the gang came", "The gang starts: rank 3 of 4 members, start 1"}
	if diff := cmp.Diff(wantEvents, events); diff != "" {
		t.Errorf("events (-want +got)\n%s", diff)
	}
}

func TestMeet_SaysWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer func(http.ResponseWriter)
		want   string
		as     any
	}{
		"given up":         {says(200, `{"state":"given_up","reason":"3 of 4 members of the gang came within 1m0s"}`), "3 of 4 members of the gang came within 1m0s: see why the others do not come", new(*LateError)},
		"stopped":          {says(200, `{"state":"stopped","reason":"Nomad does not want the allocation to run any more"}`), "does not want the allocation", new(*StoppedError)},
		"never together":   {says(200, `{"state":"waiting","reason":"1 of 2 members of the gang came"}`), `longer than start_timeout = "1m0s": waiting for the gang: 1 of 2`, new(*LateError)},
		"no member":        {says(403, `{"detail":"the grant does not open this"}`), "refuses the member: the grant does not open this", new(*refusedError)},
		"a wrong key":      {says(401, `{}`), "does not accept token", new(*refusedError)},
		"an older service": {says(404, `{}`), "knows no gangs: upgrade the placement service", new(*refusedError)},
		"a newer service":  {says(200, `{"state":"dancing"}`), `state "dancing": upgrade heteroflow-driver`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, _, err := meet(t, 25*time.Second, tc.answer)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if tc.as != nil && !errors.As(err, tc.as) {
				t.Errorf("%T", err)
			}
		})
	}
}

// While the placement service is away the member waits on, and says so.
func TestMeet_ServiceAway(t *testing.T) {
	t.Parallel()
	c := clock.NewFake(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	s := &service{answers: []func(http.ResponseWriter){
		says(503, `{"detail":"the database cannot be reached: try again"}`),
		says(200, `{"state":"started","members":1,"attempt":1}`),
	}}
	server := httptest.NewServer(s)
	defer server.Close()
	client := &Client{Server: server.URL, HTTP: server.Client(), Clock: c}
	var events []string
	done := make(chan error, 1)
	go func() {
		_, err := client.Meet(context.Background(), Arrival{AllocID: "a"}, time.Minute, func(text string) { events = append(events, text) })
		done <- err
	}()
	if err := c.AwaitWaiters(t.Context(), 1); err != nil { // the pause after the call that failed
		t.Fatal(err)
	}
	c.Advance(shortest)
	if err := <-done; err != nil || len(events) < 2 || !strings.Contains(events[1], "database cannot be reached") {
		t.Errorf("%v, %q", err, events)
	}
}

func TestWriteFiles_FollowsNoLinkOut(t *testing.T) {
	t.Parallel()
	dir, out := t.TempDir(), t.TempDir()
	if err := WriteFiles(dir, map[string]string{"heteroflow/hostfile": "a slots=1\n"}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "heteroflow", "hostfile")); err != nil || string(text) != "a slots=1\n" {
		t.Errorf("%q, %v", text, err)
	}
	secret := filepath.Join(out, "secret")
	if err := os.WriteFile(secret, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	hostfile := filepath.Join(dir, "heteroflow", "hostfile")
	if err := errors.Join(os.Remove(hostfile), os.Symlink(secret, hostfile)); err != nil {
		t.Fatal(err)
	}
	if err := WriteFiles(dir, map[string]string{"heteroflow/hostfile": "b slots=1\n"}); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(secret); string(text) != "kept" {
		t.Errorf("a link led out of the folder: %q", text)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "heteroflow")), os.Symlink(out, filepath.Join(dir, "heteroflow"))); err != nil {
		t.Fatal(err)
	}
	if err := WriteFiles(dir, map[string]string{"heteroflow/hostfile": "c"}); err == nil {
		t.Error("a folder that leads out was written to")
	}
	if err := WriteFiles(dir, map[string]string{"../x": "c"}); err == nil {
		t.Error("a path that leads out was written to")
	}
}

func TestCardAddresses(t *testing.T) {
	t.Parallel()
	// Written from the tool's reference: no file of a machine is public.
	got := CardAddresses("address_0=192.168.100.101\nnetmask_0=255.255.255.0\naddress_7=192.168.101.107\r\naddress_x=1.2.3.4\naddress_2=none\n")
	if diff := cmp.Diff(map[int]string{0: "192.168.100.101", 7: "192.168.101.107"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func FuzzCardAddresses(f *testing.F) {
	f.Add("address_0=192.168.100.101\n")
	f.Add("address_=\naddress_99999999999999999999=1.1.1.1")
	f.Fuzz(func(t *testing.T, text string) {
		for index, addr := range CardAddresses(text) {
			if index < 0 || addr == "" {
				t.Errorf("%d: %q", index, addr)
			}
		}
	})
}
