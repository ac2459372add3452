package store

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	queryHead = regexp.MustCompile(`(?m)^-- name: (\w+) :\w+$`)
	parameter = regexp.MustCompile(`@(\w+)`)
)

// queries are the statements that sqlc is given, by name.
func queries(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("queries/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		heads := queryHead.FindAllSubmatchIndex(body, -1)
		for i, head := range heads {
			end := len(body)
			if i+1 < len(heads) {
				end = heads[i+1][0]
			}
			out[string(body[head[2]:head[3]])] = string(body[head[1]:end])
		}
	}
	return out
}

// unlimited lists whole small tables on purpose: the engine and the recount need all pools, and a cluster has few
// open intents and evictions. The claims, pools and open spans of one owner, and the members of one gang, are few, and so are the
// gangs that run. All spans of a moment are read by
// one statement, so that none ends between two pages.
var unlimited = map[string]bool{
	"ListPools": true, "ListAllPools": true, "ListPoolsOfNode": true, "ListClaimedPools": true, "ListClaims": true,
	"ListOpenIntents": true, "ListOpenEvictions": true, "ListCardSpans": true, "ListCardSpansOfJob": true, "ListGangMembers": true,
	"ListStartedGangs": true,
}

// scans read a whole table on purpose: the same small ones, and the sums, which read a range of time.
var scans = map[string]bool{"ListOpenIntents": true, "ListOpenEvictions": true, "DeleteClosedEvictions": true, "DeleteClosedReservations": true, "ListClaimedPools": true}

func TestQueries_HaveALimitAndAnIndex(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, filepath.Join(t.TempDir(), "state.db"))
	for name, query := range queries(t) {
		if strings.HasPrefix(name, "List") && !unlimited[name] && !strings.Contains(query, "LIMIT @max_rows") {
			t.Errorf("%s has no limit", name)
		}
		if strings.Contains(query, "INSERT INTO") || scans[name] {
			continue
		}
		seen := map[string]bool{}
		var args []any
		for _, p := range parameter.FindAllStringSubmatch(query, -1) {
			if !seen[p[1]] {
				seen[p[1]] = true
				args = append(args, sql.Named(p[1], 1))
			}
		}
		rows, err := s.read.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for rows.Next() {
			var id, parent, unused int
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(step, "TEMP B-TREE") && !strings.HasPrefix(name, "Sum") ||
				strings.HasPrefix(step, "SCAN ") && !strings.Contains(step, "INDEX") {
				t.Errorf("%s: %s", name, step)
			}
		}
		if err := rows.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
