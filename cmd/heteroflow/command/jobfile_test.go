package command

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestNeedsLocalParse(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]bool{
		http.StatusNotFound: true, http.StatusBadGateway: true, http.StatusServiceUnavailable: true,
		http.StatusBadRequest: false, http.StatusForbidden: false, http.StatusInternalServerError: false,
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", status) }))
		nomad, err := api.NewClient(&api.Config{Address: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		_, err = nomad.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: "job"})
		s.Close()
		if got := needsLocalParse(err); got != want {
			t.Errorf("status %d: parse here is %v, want %v", status, got, want)
		}
	}
}
