"""Generated from proto/simgrad/v1 by scripts/generate-proto; not edited by hand."""
