package supervisor

import (
	"os/exec"
	"slices"
	"testing"
	"time"
)

// begin starts a program in a session of its own, which ends with the test.
func begin(t *testing.T, command ...string) Proc {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = ownSession()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := ProcOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.KillSession()
		if err := cmd.Wait(); err == nil {
			t.Error("the program ended by itself")
		}
	})
	return p
}

func TestSessions_OneLookServesAll(t *testing.T) {
	t.Parallel()
	var s Sessions
	first, second := begin(t, "sleep", "1000"), begin(t, "sh", "-c", "sleep 1000 & wait")
	for deadline := time.Now().Add(20 * time.Second); len(second.Session()) < 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the second program has no child")
		}
	}
	for _, p := range []Proc{first, second} {
		got, want := pidsOf(s.Of(p)), pidsOf(p.Session())
		if !slices.Equal(got, want) {
			t.Errorf("session of %d: %v, want %v", p.PID, got, want)
		}
	}
	s.at = time.Now().Add(time.Hour) // the look serves for as long as the test may take
	second.KillSession()
	if left := s.Of(second); len(left) != 0 {
		t.Errorf("ended processes are told from an old look: %+v", left)
	}
	late := begin(t, "sleep", "1000")
	if got := s.Of(late); len(got) != 0 {
		t.Errorf("a second look was taken: %+v", got)
	}
	s.at = time.Time{}
	if got := s.Of(late); len(got) != 1 {
		t.Errorf("after the next look: %+v, want one process", got)
	}
}

func TestSessions_PidReuse(t *testing.T) {
	t.Parallel()
	var s Sessions
	p := begin(t, "sleep", "1000")
	earlier, otherBoot := p, p
	earlier.Start--
	otherBoot.Boot = "another"
	for name, gone := range map[string]Proc{"an earlier process": earlier, "another boot": otherBoot, "none": {}} {
		if got := s.Of(gone); len(got) != 0 {
			t.Errorf("%s: %+v, want none", name, got)
		}
	}
}

func pidsOf(all []Stat) []int {
	var pids []int
	for _, s := range all {
		pids = append(pids, s.PID)
	}
	slices.Sort(pids)
	return pids
}
