// From rows of a checkpoint to panels.
#pragma once

#include "args.h"
#include "stored.h"

namespace headrace {

// Bytes of a row of `matrix` as it is stored; -1 where rows are no whole blocks.
int64_t stored_row_bytes(const Matrix& matrix, Stored stored);

// Rows [rows, matrix.in], one after another, become outputs of `matrix`: row i goes to panel
// (first + i) / 16 * panel_step + panel_offset, lane (first + i) % 16. The panels were zero before.
void pack_rows(const Matrix& matrix, uint32_t* panels, const void* rows, Stored stored, int64_t num_rows, int64_t first,
               int64_t panel_step, int64_t panel_offset);

// The same for a matrix of few bits: quants [rows, in], scales and, where the format has them, minimums [rows, groups] as
// float32, or as float16 where the format's scales are.
// The same for a matrix whose inputs are mixed: rows are quantised.
void pack_mixed(const Matrix& matrix, uint32_t* panels, const void* rows, Stored stored, int64_t num_rows, int64_t first,
                int64_t panel_step, int64_t panel_offset);

void pack_groups(const Matrix& matrix, uint32_t* panels, const uint8_t* quants, const void* scales, const void* minimums,
                 int64_t num_rows, int64_t first, int64_t panel_step, int64_t panel_offset);

}  // namespace headrace
