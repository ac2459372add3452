package main

import (
	"strings"
	"testing"
)

func TestSummarise(t *testing.T) {
	t.Parallel()
	in := strings.Join([]string{
		`{"Action":"run","Package":"p","Test":"TestA"}`,
		`{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: no nomad on PATH\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestB"}`,
		`{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: want 1, got 2\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestC"}`,
		`{"Action":"fail","Package":"p","Elapsed":1.5}`,
		`{"Action":"build-output","ImportPath":"q","Output":"q.go:1: broken\n"}`,
		`{"Action":"fail","Package":"q"}`,
	}, "\n")
	var out strings.Builder
	r, err := summarise(strings.NewReader(in), &out)
	if err != nil {
		t.Fatal(err)
	}
	if r.passed != 1 || r.failed != 1 || r.skipped != 1 || r.brokenPackages != 2 {
		t.Errorf("counts: %+v", r)
	}
	for _, want := range []string{"SKIPPED 1: no nomad on PATH", "want 1, got 2", "q.go:1: broken", "1 passed, 3 failed, 1 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}
