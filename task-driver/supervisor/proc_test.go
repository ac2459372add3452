package supervisor

import "testing"

func TestParseStat(t *testing.T) {
	t.Parallel()
	// Written after proc_pid_stat(5); the command name tries to look like the fields behind it.
	line := "4242 (a) S 1 (b) S 1 4242 4242 0 -1 4194560 90 0 0 0 12 34 0 0 20 0 1 0 987654 5000000 250 18446744073709551615 1 1\n"
	got, err := parseStat([]byte(line))
	want := Stat{PID: 4242, State: 'S', Parent: 1, Group: 4242, Session: 4242, UserTicks: 12, SystemTicks: 34, Start: 987654, RSSPages: 250}
	if err != nil || got != want {
		t.Fatalf("parse = %+v, %v; want %+v", got, err, want)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (init) S 0 1 1 0 -1 4194560 90 0 0 0 12 34 0 0 20 0 1 0 98 5000000 250 1 1 1"))
	f.Add([]byte("1 () "))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := parseStat(body)
		if err == nil && s.State == 0 {
			t.Errorf("accepted without a state: %q", body)
		}
	})
}
