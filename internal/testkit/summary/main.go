// Command summary reads the output of `go test -json` and prints what a person wants to know: each package, the
// output of what failed, what was skipped and why, and one closing line. It runs no test itself.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
)

type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
	// ImportPath stands in for Package on the lines of a failed build.
	ImportPath string
}

type result struct {
	passed, failed, skipped int
	brokenPackages          int
	skips                   map[string][]string // reason → tests
}

func main() {
	r, err := summarise(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
	if r.failed > 0 || r.brokenPackages > 0 {
		os.Exit(1)
	}
}

func summarise(in io.Reader, out io.Writer) (result, error) {
	r := result{skips: map[string][]string{}}
	output := map[string][]string{} // package + "\x00" + test → its lines
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			fmt.Fprintln(out, scanner.Text())
			continue
		}
		key := e.Package + "\x00" + e.Test
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			output[key] = append(output[key], e.Output)
		case "pass", "fail", "skip":
			r.count(e, output[key], out)
			delete(output, key)
		}
	}
	if err := scanner.Err(); err != nil {
		return r, fmt.Errorf("read go test -json: %w", err)
	}
	reasons := make([]string, 0, len(r.skips))
	for reason := range r.skips {
		reasons = append(reasons, reason)
	}
	sort.Strings(reasons)
	for _, reason := range reasons {
		fmt.Fprintf(out, "SKIPPED %d: %s\n", len(r.skips[reason]), reason)
		for _, test := range r.skips[reason] {
			fmt.Fprintf(out, "    %s\n", test)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed+r.brokenPackages, r.skipped)
	return r, nil
}

func (r *result) count(e event, lines []string, out io.Writer) {
	name := e.Package + " " + e.Test
	switch {
	case e.Test == "" && e.Action == "fail":
		fmt.Fprintf(out, "FAIL\t%s\t%.1fs\n", e.Package, e.Elapsed)
		fmt.Fprint(out, strings.Join(lines, ""))
		r.brokenPackages++ // also a build failure, or an exit outside a test
	case e.Test == "" && e.Action == "pass":
		fmt.Fprintf(out, "ok\t%s\t%.1fs\n", e.Package, e.Elapsed)
	case e.Test == "":
		// a package without tests
	case e.Action == "pass":
		r.passed++
	case e.Action == "skip":
		r.skipped++
		reason := skipReason(lines)
		r.skips[reason] = append(r.skips[reason], name)
	default:
		r.failed++
		fmt.Fprintf(out, "--- FAIL: %s (%.1fs)\n%s", name, e.Elapsed, strings.Join(lines, ""))
	}
}

// skipReason finds the text given to t.Skip: the line "file_test.go:12: reason" before the "--- SKIP" line.
func skipReason(lines []string) string {
	for _, line := range lines {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "=== ") || strings.HasPrefix(text, "--- ") || text == "" {
			continue
		}
		if _, reason, ok := strings.Cut(text, "_test.go:"); ok {
			if _, reason, ok = strings.Cut(reason, ": "); ok {
				return reason
			}
		}
		return text
	}
	return "no reason given"
}
