// Package api is the contract of the placement service: openapi.yaml, the document that clients are made from,
// and the server interface generated from it. Handlers and everything that decides belong to the service.
package api

import _ "embed"

// Spec is openapi.yaml as it is served.
//
//go:embed openapi.yaml
var Spec []byte
