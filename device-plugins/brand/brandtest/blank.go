package brandtest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
)

// Why a blank is unclear in an output.
const (
	NoBars     = "no bars stand between its columns, so that nothing tells which value of a line is missing"
	SharedCell = "several values stand between two bars, so that nothing tells which of them is missing"
)

// Blanks puts nothing in place of every number of every recorded output, one after another, and wants that the field for
// which the number stood becomes unknown and that nothing else changes. Torn names the outputs, as patterns, in which nothing tells
// which of several values is missing, and why: there a blank may make unknown what stands in the same cell too, or where
// there are no bars, in the same line, and no more; and nothing may become another value. Named and other are those of
// Unknowns.
func Blanks(t *testing.T, parse func(string) brand.Reading, named func(c brand.Card) []string, torn map[string]string, other ...string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".md") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			why := ""
			for pattern, reason := range torn {
				if ok, err := filepath.Match(pattern, filepath.Base(file)); err != nil {
					t.Fatal(err)
				} else if ok {
					why = reason
				}
			}
			BlanksIn(t, Recorded(t, filepath.Base(file)), parse, named, why, other...)
		})
	}
}

// BlanksIn is Blanks for one output, of which why says why a blank is unclear in it; empty when it is not.
func BlanksIn(t *testing.T, text string, parse func(string) brand.Reading, named func(c brand.Card) []string, why string, other ...string) {
	t.Helper()
	want, shown, lost := fieldsOf(parse(text), named), 0, 0
	bare := json.Valid([]byte(text))
	for _, at := range places(text) {
		old := text[at[0]:at[1]]
		word := strings.Repeat(" ", len(old))
		if bare && strings.Count(line(text[:at[0]], at[0]), `"`)%2 == 0 {
			word = `""` // a bare blank would be no JSON
		}
		changed := text[:at[0]] + word + text[at[1]:]
		wrong := compare(want, fieldsOf(parse(changed), named), old, "", other)
		if wrong != "" && why != "" {
			lost++
			start, end := cell(text, at[0])
			empty := text[:start] + strings.Repeat(" ", end-start) + text[end:]
			wrong = unclear(want, fieldsOf(parse(changed), named), fieldsOf(parse(empty), named), old)
		}
		if wrong == "" {
			continue
		}
		t.Errorf("a blank in place of %q in %q: %s", old, line(text, at[0]), wrong)
		if shown++; shown == 5 {
			return
		}
	}
	if why != "" && lost == 0 {
		t.Errorf("no blank is unclear in it, though it is said that %s", why)
	}
}

// cell is what stands between the bars around a place, or between the ends of its line.
func cell(text string, at int) (start, end int) {
	start = strings.LastIndexAny(text[:at], "|\n") + 1
	if end = strings.IndexAny(text[at:], "|\n"); end < 0 {
		end = len(text) - at
	}
	return start, at + end
}

// unclear says what is wrong with a reading in which one of several values of a cell is blank, by one in which they all are;
// empty when nothing is.
func unclear(want, got, without snapshot, old string) string {
	for key := range got.cards {
		if _, there := want.cards[key]; !there {
			return fmt.Sprintf("there is no card %s", key)
		}
	}
	for key, fields := range want.cards {
		now, there := got.cards[key]
		if _, stays := without.cards[key]; !there && stays {
			return fmt.Sprintf("card %s is gone", key)
		}
		for name, v := range fields {
			switch {
			case !there, now[name] == v, strings.HasPrefix(name, "fact "), text(name) && strings.Contains(v, old):
			case now[name] != "":
				return fmt.Sprintf("%s of card %s became %q", name, key, now[name])
			case without.cards[key][name] != "":
				return fmt.Sprintf("%s of card %s is lost, and stands elsewhere", name, key)
			}
		}
		for name, v := range now {
			if fields[name] == "" && v != "" && !strings.HasPrefix(name, "fact ") {
				return fmt.Sprintf("%s of card %s is %q", name, key, v)
			}
		}
	}
	return ""
}

// before are lines that stand before what tools print: warnings, times, and what looks like a part of it.
var before = []string{
	"[WARNING] driver log is full, 3 of 8 entries are lost",
	"2026-07-14 09:00:43.742 [12345:12345] W failed to open /dev/null: 0 bytes, retry 2",
	"WARNING: One or more commands failed",
	"",
	"+-----------------------------------------------------------------------------+",
	"Tue Jul 14 09:00:43 2026",
}

// LinesBefore puts lines before every recorded output and wants that nothing changes.
func LinesBefore(t *testing.T, parse func(string) brand.Reading) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file, ".md") {
			LinesBeforeIn(t, filepath.Base(file), Recorded(t, filepath.Base(file)), parse)
		}
	}
}

// LinesBeforeIn is LinesBefore for one output.
func LinesBeforeIn(t *testing.T, file, text string, parse func(string) brand.Reading) {
	t.Helper()
	anonymous := func(brand.Card) []string { return nil }
	want := fieldsOf(parse(text), anonymous).cards
	for n := range before {
		for _, noise := range []string{before[n], strings.Join(before[:n+1], "\n")} {
			for _, end := range []string{"\n", "\r\n"} {
				got := fieldsOf(parse(strings.ReplaceAll(noise+"\n"+text, "\n", end)), anonymous).cards
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s after the lines %q, each ended by %q (-want +got):\n%s", file, noise, end, diff)
				}
			}
		}
	}
}
