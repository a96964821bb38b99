//! `#[derive(Message)]`: plain structs that host and device read in place.
//!
//! This room only writes down what a struct looks like. What a message is, and every check that needs the compiler's
//! own knowledge of sizes, is in `millrace-resident`.

#![forbid(unsafe_code)]

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, ExprLit, Fields, Ident, Lit, Result, Type, meta::ParseNestedMeta,
    spanned::Spanned,
};

/// Makes a `#[repr(C)]` struct of numbers, arrays and other messages a message; for crates that use
/// `millrace-resident` itself.
#[proc_macro_derive(Message)]
pub fn message(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(input, &quote!(::millrace_resident))
}

/// The same, for crates that use the facade `millrace`, which offers it as `Message`.
#[proc_macro_derive(FacadeMessage)]
pub fn facade_message(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(input, &quote!(::millrace::resident))
}

fn expand(input: proc_macro::TokenStream, krate: &TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    derive(&input, krate).unwrap_or_else(Error::into_compile_error).into()
}

fn derive(input: &DeriveInput, krate: &TokenStream) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.ident.span(), "a message is a struct: it has the same bytes on every device"));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new(input.generics.span(), "a message has no generic parameters: its size must be known"));
    }
    check_repr(&input.attrs, input.ident.span())?;
    let fields = match &data.fields {
        Fields::Named(named) => named.named.iter().collect(),
        Fields::Unit => Vec::new(),
        Fields::Unnamed(fields) => {
            return Err(Error::new(fields.span(), "a message names its fields: WGSL has no tuples"));
        }
    };

    let (name, name_text) = (&input.ident, input.ident.to_string());
    let mut layouts = Vec::new();
    let mut members = Vec::new();
    let mut checks = Vec::new();
    for field in fields {
        let Some(field_name) = &field.ident else { continue };
        let text = field_name.to_string();
        let shape = shape(&field.ty)?;
        let (wgsl, rust) = (&shape.wgsl, &shape.rust);
        members.push(format!("    {text}: {wgsl},\n"));
        let nested = match &shape.nested {
            Some((ty, ident)) => {
                let ident = ident.to_string();
                checks.push(quote! {
                    assert!(
                        krate::layout::same_text(<#ty as krate::Message>::LAYOUT.name, #ident),
                        "a nested message is named by its own name, not by another"
                    );
                });
                quote!(Some(<#ty as krate::Message>::LAYOUT))
            }
            None => quote!(None),
        };
        let ty = &field.ty;
        layouts.push(quote! {
            krate::layout::FieldLayout {
                name: #text,
                offset: ::core::mem::offset_of!(#name, #field_name),
                size: ::core::mem::size_of::<#ty>(),
                rust: #rust,
                wgsl: #wgsl,
                nested: #nested,
            }
        });
    }
    if members.is_empty() {
        members.push("    nothing: u32,\n".to_owned()); // WGSL has no empty structs
    }
    let wgsl = format!("struct {name_text} {{\n{}}}\n", members.concat());
    Ok(quote! {
        const _: () = {
            use #krate as krate;
            const FIELDS: &[krate::layout::FieldLayout] = &[#(#layouts),*];
            const _: () = {
                assert!(
                    krate::layout::without_padding(FIELDS, ::core::mem::size_of::<#name>()),
                    "a message has no padding: order its fields so that 64-bit ones lie at multiples of eight, or fill \
                     the gap with a field"
                );
                #(#checks)*
            };
            // SAFETY: it is `repr(C)`, every field is a number, an array or a message, and there is no padding.
            unsafe impl krate::Message for #name {
                const LAYOUT: &'static krate::layout::MessageLayout = &krate::layout::MessageLayout {
                    name: #name_text,
                    id: krate::layout::type_id(#name_text, FIELDS),
                    size: ::core::mem::size_of::<#name>(),
                    fields: FIELDS,
                    wgsl: #wgsl,
                };
            }
        };
    })
}

/// Exactly `repr(C)`: anything else moves fields or adds padding.
fn check_repr(attrs: &[Attribute], span: Span) -> Result<()> {
    let mut c = false;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("repr")) {
        attr.parse_nested_meta(|meta: ParseNestedMeta<'_>| {
            if meta.path.is_ident("C") {
                c = true;
                return Ok(());
            }
            if meta.input.peek(syn::token::Paren) {
                let content;
                syn::parenthesized!(content in meta.input);
                content.parse::<TokenStream>()?;
            }
            Err(meta.error("a message is `repr(C)` and nothing else: its fields lie where C puts them"))
        })?;
    }
    if c { Ok(()) } else { Err(Error::new(span, "a message needs `#[repr(C)]`: its fields lie where C puts them")) }
}

/// How a field is written on both sides.
struct Shape {
    rust: String,
    wgsl: String,
    nested: Option<(Type, Ident)>,
}

impl Shape {
    fn plain(rust: &str, wgsl: &str) -> Self {
        Self { rust: rust.to_owned(), wgsl: wgsl.to_owned(), nested: None }
    }
}

fn shape(ty: &Type) -> Result<Shape> {
    match ty {
        Type::Paren(inner) => shape(&inner.elem),
        Type::Group(inner) => shape(&inner.elem),
        Type::Array(array) => {
            let Expr::Lit(ExprLit { lit: Lit::Int(count), .. }) = &array.len else {
                return Err(Error::new(array.len.span(), "the length of a message's array is a plain number"));
            };
            let count: u32 = count.base10_parse()?;
            if count == 0 {
                return Err(Error::new(array.len.span(), "a message's array has at least one element"));
            }
            let of = shape(&array.elem)?;
            let (rust, wgsl) = (format!("[{}; {count}]", of.rust), format!("array<{}, {count}>", of.wgsl));
            Ok(Shape { rust, wgsl, nested: of.nested })
        }
        Type::Path(path) if path.qself.is_none() => {
            let Some(last) = path.path.segments.last() else {
                return Err(Error::new(ty.span(), "a message's field is a number, an array or a message"));
            };
            if !last.arguments.is_none() {
                return Err(Error::new(ty.span(), "a message has no generic fields: its size must be known"));
            }
            let name = last.ident.to_string();
            match name.as_str() {
                "u32" | "i32" | "f32" => Ok(Shape::plain(&name, &name)),
                "u64" | "i64" | "f64" => Ok(Shape::plain(&name, "array<u32, 2>")),
                "u8" | "i8" | "u16" | "i16" | "bool" | "char" | "usize" | "isize" | "u128" | "i128" | "f16" => {
                    let text = format!("a message has no `{name}`: WGSL cannot share it with the host; use u32 or u64");
                    Err(Error::new(ty.span(), text))
                }
                "String" | "Vec" | "Box" | "Arc" | "Rc" => {
                    let text = format!("a message has no `{name}`: it is its bytes; see `ArchivedHandler` for others");
                    Err(Error::new(ty.span(), text))
                }
                _ => Ok(Shape { rust: name.clone(), wgsl: name, nested: Some((ty.clone(), last.ident.clone())) }),
            }
        }
        Type::Reference(_) | Type::Ptr(_) => {
            Err(Error::new(ty.span(), "a message holds no references: the device could not follow them"))
        }
        _ => Err(Error::new(ty.span(), "a message's field is a number, an array or a message")),
    }
}
