"""Passes, and what several of them share.

A pass is a module with a function of its name or nearly so, from an op, gathered statements, a
program, a kernel, or the body of one, to another form of the same. What other public functions it
has are steps, tests and facts of it that others need too. `opgen.programs` has the order of those
over whole programs; which ones are in turn applied to a kernel is up to `rows`, `cuda_rows`,
`blocks` and others that are made of passes.

These find something out and change nothing:

    of ops       alike, certify, convolution, deviations, fingerprint, halves, independence,
                 joined_dims, product, without_effect
    of kernels   apart, block_tensors, frames, lane_bounds, lane_choice, moves, plane_cells

and these are parts that passes are made of:

    derivatives        assemble, chain_rule, coverage, derivation, kept_positions, kept_quotients,
                       order, reducers
    ops                absent_outside, cell_factors, cells, common_factors, continued_images,
                       contractions, early_functions, gathered_factors, new_temporaries,
                       scattered_products, separable_filters, small_factors, turned_filters, up_to
    loops of an op     bucket_loops, lower, nest, point_form
    bodies of kernels  all_terms, block_tiling, jam, load_order, merge, moving_loops, nearby, peel,
                       plane_runs, tile, turns
"""
