//go:build unix

package filelock_test

import (
	"path/filepath"
	"testing"

	"github.com/heteroflow/heteroflow/internal/filelock"
)

func TestTry_OneHolderAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks", "a.lock")
	first, err := filelock.Try(path)
	if err != nil || first == nil {
		t.Fatalf("lock is %v, %v", first, err)
	}
	if second, err := filelock.Try(path); err != nil || second != nil {
		t.Fatalf("a lock that is held is given again: %v, %v", second, err)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	third, err := filelock.Try(path)
	if err != nil || third == nil {
		t.Fatalf("a lock that was given back is not given: %v, %v", third, err)
	}
	if err := third.Release(); err != nil {
		t.Fatal(err)
	}
}
