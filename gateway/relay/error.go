package relay

import (
	"encoding/json"
	"net/http"
)

// WriteError answers in OpenAI's error shape. An empty code is null.
func WriteError(w http.ResponseWriter, status int, kind, code, message string) {
	var codeValue any
	if code != "" {
		codeValue = code
	}
	body := map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": codeValue}}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // the client left; nobody to tell
}
